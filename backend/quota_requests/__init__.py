"""Requests for a larger quota in a pool: from a team, answered by an operator."""
