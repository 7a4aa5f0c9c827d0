"""What devices were used for: settled once, reported in many ways.

models      settled rows, a day each
timelines   the moments of a job that count
split       from those moments to time by kind
services    settles what is over, forever
selectors   what a team has spent, for budgets and ceilings
report      sums, grouped as the reader asks
csv_table   the same for spreadsheets
background  the task that settles
api         REST over reports
"""
