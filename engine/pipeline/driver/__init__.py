"""The driver's brain: how far the run is, what was asked of it from outside, and the one end that it has.

brain        messages in, effects out
readiness    when the pipeline is ready, and the phases of a run
requests     a pause, another size: said again until it has come true, acknowledged then
environment  the environment's worker: replaced when it is gone or silent, given up when it keeps dying
stillness    how long nothing has moved
run_end      trainer and data have both finished, and both speak of the newest trainer
"""
