"""Tokens per second of the rollout engines."""
