"""Evaluations of a team's checkpoints.

views     the page
compared  each result beside the one before it
"""
