"""Budgets of projects and people, in device-seconds or money, and of teams in money: what they may spend in a month."""
