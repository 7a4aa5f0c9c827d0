"""Reading what a model writes: step, group, trajectory, token."""
