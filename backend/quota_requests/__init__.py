"""Questions for more of a pool: a team asks, an operator answers."""
