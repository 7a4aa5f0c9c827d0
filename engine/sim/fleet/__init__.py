"""Whole runs on many devices: the brains that run live, under a virtual clock, priced by cost models."""
