"""The driver's brain: the run's progress, requests from outside, and the run's one end."""
