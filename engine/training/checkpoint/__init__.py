"""Checkpoints: atomic, written by every rank for its own part, in one format for all trainers."""
