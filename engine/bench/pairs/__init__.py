"""Kept runs of `bench schedules`, each beside its simulation."""
