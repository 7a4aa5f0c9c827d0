"""Monthly budgets of projects and users, in device-seconds or money, and of teams, in money."""
