"""The driver's brain: the run's progress, requests from outside, and the one end that it has."""
