"""Pages of data sets and models.

views           what a team has, what it keeps of what it may, and how to bring more
on_nodes        on how many nodes each of them lies
registry_views  a model of the registry: versions, notes, removing
"""
