"""A relay's brain: holds versions, serves its host's replicas, forwards to the next relay."""
