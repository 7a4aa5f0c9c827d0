"""Validation of new passwords, without a network."""
