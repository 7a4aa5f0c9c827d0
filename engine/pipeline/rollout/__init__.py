"""A replica's brain: pulls weights, asks for work, hands over what ends.

brain     messages in, effects out
weights   what fresh work starts on, what else is in use, what is pulled next
workload  running, awaited, reserved, ended but not confirmed
"""
