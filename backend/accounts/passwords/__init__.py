"""Judging a new password, without a network."""
