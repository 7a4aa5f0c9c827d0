"""The pipeline's very brains under a virtual clock, with faults drawn from a seed.

world          one run: a cluster, its blows, what is asked of it
scenario       jobs of random shape
faults         the faults that a seed turns on
fault_costs    small figures in the proportions of large ones, for fault simulation
costs          what things cost on real devices
fleet          whole runs on many of them, with no faults
compare        schedules compared on fleets
recorded       what live runs told: constants fitted to it
hosts          the hosts under the processes, where a run has any
setting        things that all bodies of a run share
cluster        the processes, started and killed
process        one of them: brain, loop, heartbeat
workers        its threads beside the loop
network        loses, doubles, delays what they say
outbox         what a process has for the driver
bodies         data and the trainer, and what survives them
rollout_body   a replica, decoding by arithmetic
relay_bodies   relays, whose bytes are names
environment    the worker, which has no brain
self_report    a replica's news of itself, to the driver
checks         the oracle of training
driver_oracle  the oracle of announcements, and of the end
kernel         virtual time
chance         random numbers, the same everywhere
"""
