"""Lists of the jobs of the user's teams."""
