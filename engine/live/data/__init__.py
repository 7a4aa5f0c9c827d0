"""Data: prompts out, trajectories in, batches to the trainer; everything logged before it is answered.

actor         the brain, and a body that keeps its log
journal_file  that log on disk, synced
snapshots     the state in between, written beside
places        where each trajectory lies in it
frames        an entry as bytes
recovery      the log as it is read again
"""
