"""The pipeline's very brains under a virtual clock, with faults drawn from a seed.

world          one run: a cluster, its blows, what is asked of it
scenario       jobs of random shape
faults         which faults a seed turns on
costs          what things cost in virtual seconds
setting        what all bodies of a run share
cluster        the processes, started and killed
process        one of them: brain, loop, heartbeat
network        loses, doubles, delays what they say
outbox         what a process has for the driver
bodies         data and the trainer, and what survives them
rollout_body   a replica, decoding by arithmetic
relay_bodies   relays, whose bytes are names
environment    the worker, which has no brain
self_report    what a replica tells the driver of itself
checks         the oracle of what is trained
driver_oracle  the oracle of what is announced, and of the end
kernel         virtual time
chance         random numbers, the same everywhere
"""
