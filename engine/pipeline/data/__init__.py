"""Data's brain: hands out prompts, collects trajectories, makes batches of complete groups."""
