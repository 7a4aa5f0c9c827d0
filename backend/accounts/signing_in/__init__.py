"""Signing in and what keeps it: what is written down of it, links that set a password.

events        sign-ins, second factors and passwords, as the audit log hears of them
denials       requests that were denied, in the audit log
chains        the audit chains in which a person's own events stand
resets        a link that sets a new password
first_person  whether anybody could sign in at all
"""
