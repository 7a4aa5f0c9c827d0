"""Signing in and what keeps it: what is written down of it, links that set a password.

chains  the audit chains in which a person's own events stand
resets  a link that sets a new password
"""
