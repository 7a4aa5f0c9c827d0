"""A relay's brain: holds versions, serves its host's replicas, passes on to the next relay."""
