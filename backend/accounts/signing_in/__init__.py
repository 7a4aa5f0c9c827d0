"""Signing in and what keeps it: what is written down of it, links that set a password."""
