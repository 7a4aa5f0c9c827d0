"""A replica's brain: pulls weights, asks for work, hands over finished trajectories.

brain     messages in, effects out
weights   weights for fresh work, others in use, those to pull next
tellings  what data has heard of the samples that run
workload  running, awaited, reserved, ended but not confirmed
places    how many of these on which weights
"""
