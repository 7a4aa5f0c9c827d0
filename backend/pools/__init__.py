"""Capacity, who may use how much of it, and the pure decision who starts now.

models           pools, quotas, budgets, reservations
selectors        what a pool has, and who holds it
services         changes quotas and budgets, gives devices back
budgets          GPU-time of a month: allowed, spent, promised
history          recent use, which breaks ties of fair share
changes          tells the scheduler that a pool has changed
views            what a decision is given, and what it answers
decide           who starts now, and why the others wait
balance          the books of one round
victims          from whom devices are taken back
elastic          idle devices become further replicas
forecast         the same decision on changed inputs
demo             a team, a key and a pool to try things with
api              REST over pools, quotas and budgets
representations  how they look to programs
admin            pages for operators
"""
