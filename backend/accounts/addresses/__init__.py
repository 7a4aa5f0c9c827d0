"""A person's one address: it counts only once proved, and how it moves."""
