"""Budgets of projects and people, in device-seconds or money, and of teams in money: what they may spend in a month.

models      limits, and warnings that were given
spending    spent and promised, by team, project and person
limits      limits set, and how far they are used
purses      what limits leave, for the scheduler
warnings    a word at 50, 80 and 100 per cent, once a month each
background  the task that looks for warnings to give
api         REST over limits
"""
