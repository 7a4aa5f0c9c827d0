"""One execution of a job on the engine, from its beginning to its end.

beginning      the one way from waiting or recovering to starting
tokens         proofs of a driver's identity
launching      from the database to a submission on the engine
launcher       Ray's Jobs API
library        the data sets and models that specs may name, a port
resume_points  the checkpoint from which the next attempt goes on
evidence       the traces kept of one that failed
failures       classes of failure, and what to do about each
ending         its end, and what becomes of its job then
tracing        the way of a job as a trace, for a collector
"""
