"""The browsers in which people are signed in."""
