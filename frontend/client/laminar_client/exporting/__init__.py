"""Export of a finished job's curves into the formats of other trackers.

`decisions.md`, two folders above, says why their libraries write the formats.
"""
