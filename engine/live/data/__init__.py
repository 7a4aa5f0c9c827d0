"""Data: prompts out, trajectories in, batches to the trainer; everything logged before it is answered.

actor         the brain, and a body that keeps its log
journal_file  that log on disk, synced
"""
