"""A replica's brain: pulls weights, asks for work, hands over finished trajectories.

brain     messages in, effects out
weights   weights for fresh work, others in use, those to pull next
workload  running, awaited, reserved, ended but not confirmed
"""
