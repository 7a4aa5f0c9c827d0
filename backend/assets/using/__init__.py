"""Assets of jobs: found by the names in a spec, fetched by the nodes of an attempt.

naming   the assets that specs name, for whoever submits and launches
tokens   the right of an attempt's nodes to fetch
serving  what they fetch
"""
