"""What may be asked of a job that is there.

pausing  pausing and resuming
"""
