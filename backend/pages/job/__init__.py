"""The page of one job: its tabs, each with its own URL, and its actions."""
