"""Kept runs of `bench schedules`, each compared with its simulation."""
