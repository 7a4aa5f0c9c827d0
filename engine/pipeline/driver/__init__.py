"""The driver's brain: the run's progress, requests from outside, and the one end that it has.

brain        messages in, effects out
readiness    the moment when the pipeline is ready, and the phases of a run
requests     a pause, another size: said again until it has come true, acknowledged then
deadline     the pause near the end of the run's time
environment  one of the environment's workers: replaced when it is gone or silent, given up when it keeps dying
stillness    the time for which nothing has moved
run_end      trainer and data have both finished, and both speak of the newest trainer
"""
