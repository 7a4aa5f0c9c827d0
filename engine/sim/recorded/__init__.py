"""Measurements from a live run's facts, for the simulator."""
