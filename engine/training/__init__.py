"""Training: turns trajectories into steps of one or more optimizer updates, on one or more devices."""
