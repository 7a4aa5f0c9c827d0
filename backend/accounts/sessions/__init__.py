"""The browsers in which users are signed in."""
