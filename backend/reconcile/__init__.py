"""Reconciliation of Postgres' records with Ray's word, above jobs and checkpoints."""
