"""Schedules compared, each at its best split of the devices.

contestants  the schedules that are compared, and where each runs
splits       how many devices train, by closed form
grid         the cells, and the runs of each
many         them on several processes
kept         cells that are done, in a file
report       rows and summary, and what they follow from
ratios       who is ahead of whom, cell by cell
published    published figures beside ours
checks       those that take runs of their own
plots        a page of figures
sweep        the grid with each assumed constant at the ends of its sweep
dora         a published figure that the formulas miss, taken apart
cluster      one set-up that a file describes
"""
