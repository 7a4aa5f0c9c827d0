"""The use of devices: settled once, reported in many ways.

models      settled rows, a day each
pricing/    prices of pools, exact money
timelines   the moments of a job that count
split       time by kind and its cost, out of those moments
services    reservations that are over, settled forever
selectors   time that a team has spent, for budgets and ceilings
report      sums, grouped as the reader asks
csv_table   the same for spreadsheets
background  the task that settles
api         REST over reports
"""
