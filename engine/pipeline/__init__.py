"""The brains: pure state machines, `handle(message, now) -> effects`, driven by live bodies and simulated ones.

effects    what a brain wants done
plan       what brains need to know of a job's spec
records    keys, trajectories, groups, progress
journal    what data logs to survive its death

messages/  what is said, a module for each receiver
data/      prompts out, whole groups in, batches
rollout/   a replica
trainer/   one step after another
relay/     weights on their way
manager/   parts that are gone, tails worth moving
driver/    how far the run is, and its one end
"""
