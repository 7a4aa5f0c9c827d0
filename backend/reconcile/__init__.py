"""What Postgres believes against what Ray says: the truth-keeper above jobs and checkpoints.

round       one round: read, ask Ray, judge, act
views       what a round looks at
verdicts    what to do about one job
actions     what is written then
lease       one reconciler at a time
background  the task that starts each round
"""
