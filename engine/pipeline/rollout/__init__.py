"""A replica's brain: pulls weights, asks for work, hands over finished trajectories."""
