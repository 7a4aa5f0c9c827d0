"""Weights out of a trainer and on their way to the replicas.

travel        the time for which they stop the trainer, and that until the last relay has them
publisher     its trainer, which does not train
install       its replica, which only takes weights
loopback      the same bytes over bare sockets
handover      weights out of the trainer against one copy of their bytes
put_together  what two of its hosts have, with the relay that leads
"""
