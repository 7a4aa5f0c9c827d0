"""Budgets of a team, its projects and people, and questions for more quota, in the browser."""
