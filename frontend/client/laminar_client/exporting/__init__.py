"""Export of a finished job's curves into the formats of other trackers.

`decisions.md`, two folders up, explains why the trackers' own libraries write the formats.
"""
