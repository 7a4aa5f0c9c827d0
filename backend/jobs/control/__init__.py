"""Requests to a job that is there.

pausing     pausing and resuming
cancelling  cancelling, one or many, and killing
changing    name, tags, priority and runtime
"""
