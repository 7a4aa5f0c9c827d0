"""Evaluations of a team's checkpoints."""
