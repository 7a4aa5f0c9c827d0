"""Looks at every part that a site needs. Each finds what is good, and what is wrong under a name that has one cure."""
