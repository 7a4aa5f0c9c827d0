"""The trainer's brain: asks for a batch, trains, hands the new version over.

brain    messages in, effects out
alarm    rollouts and trainer disagree
offers   offers to the leading relay, and the copies kept for them
metrics  the metrics of a step
choice   its trajectories that a person may read
"""
