"""Reconciliation of Postgres' records with Ray's word, above jobs and checkpoints.

round       one round: read, ask Ray, judge, act
views       the jobs that a round looks at
asking      Ray's word about them
listening   since when drivers could be heard
verdicts    the decision about one job
patience    the time that its size adds to a deadline
actions     the writes that follow
looking     what each Ray has, against what is promised of it
lease       one reconciler at a time
background  the task that starts each round
"""
