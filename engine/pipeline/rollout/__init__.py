"""A replica's brain: pulls weights, requests work, delivers finished trajectories."""
