"""Pools of devices: capacity, quotas, and the pure decision who starts now.

models           pools, quotas, budgets, reservations
selectors        a pool's devices and their holders
services         changes of quotas and budgets, devices given back
budgets          GPU-time of a month: allowed, spent, promised
purses           other budgets, as far as they bind the scheduler
history          recent use, which breaks ties of fair share
maintenance      maintenance announced, during which nothing may start
maintenance_api  REST over it
changes          the notice to the scheduler that a pool has changed
views            the input of a decision, and its answer
decide           the decision: who starts now, and why the others wait
balance          the books of one round
victims          the choice of those whose devices are taken back
elastic          idle devices given out as further replicas
forecast         the same decision on changed inputs
demo             a team, a key and a pool to try things with
api              REST over pools, quotas and budgets
representations  pools, quotas and budgets, as programs see them
admin            pages for operators

clusters/        the Rays that pools run on
"""
