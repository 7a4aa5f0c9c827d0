"""Trajectories: rows, archive, groups, search."""
