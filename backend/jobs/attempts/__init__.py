"""One execution of a job on the engine, from its beginning to its end.

beginning      the one way from waiting or recovering to starting
tokens         how its driver proves who it is
launching      from the database to a submission on the engine
launcher       Ray's Jobs API
resume_points  where the next attempt goes on
evidence       what is kept of one that failed
failures       why it failed, and what to do
ending         how it ended, and what becomes of its job then
"""
