"""Reconciles the records in Postgres with the state of Ray, a layer above jobs and checkpoints."""
