"""Full-text search over trajectories: prompts and every turn."""
