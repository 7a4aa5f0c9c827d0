"""Checks of every part that a site needs. A check reports what is good, and faults, each with a name and a cure."""
