"""The brains: pure state machines, `handle(message, now) -> effects`, driven by live bodies and simulated ones.

effects    orders of a brain to its body
plan       the part of a job's spec that brains need
records    keys, trajectories, groups, progress
packed     numbers of one kind as one piece of memory
journal    the records that data logs to survive its death
reading    how much a person may read of a trajectory

messages/  messages, a module for each receiver
data/      prompts out, complete groups in, batches
rollout/   a replica
trainer/   one step after another
relay/     weights on their way
manager/   parts that are gone, tails worth moving
driver/    the run's progress, and its one end
"""
