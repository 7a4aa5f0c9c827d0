"""The page of one job, in tabs with addresses of their own, and what can be done there."""
