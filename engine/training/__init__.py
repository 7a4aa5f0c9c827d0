"""Training: the way from trajectories to a step, of one optimizer update or several, on one device or several."""
