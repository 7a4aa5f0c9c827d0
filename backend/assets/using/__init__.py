"""Assets of jobs: found by the names in a spec, fetched by the nodes of an attempt."""
