"""Full-text search over all that trajectories say, of the prompts and of every turn."""
