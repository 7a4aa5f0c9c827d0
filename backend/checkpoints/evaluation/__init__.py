"""Evaluations of a checkpoint: jobs that only answer held-out prompts, and their results."""
