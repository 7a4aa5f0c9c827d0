"""The data sets and models of a job on the nodes that need them: fetched once, verified, shared by all processes."""
