"""Pages for budgets of a team, its projects and members, and for quota requests."""
