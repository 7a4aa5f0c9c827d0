"""Pages of data sets and models.

views  what a team has, what it keeps of what it may, and how to bring more
"""
