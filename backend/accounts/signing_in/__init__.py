"""Signing in: its audit entries, and links that set a password."""
