"""Pages for reading trajectories: by step, group, trajectory and token."""
