"""A job's data sets and models on the nodes that need them: fetched once, verified, shared by all processes."""
