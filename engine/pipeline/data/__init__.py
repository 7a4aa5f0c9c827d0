"""Data's brain: hands out prompts, gathers trajectories, makes batches of complete groups."""
