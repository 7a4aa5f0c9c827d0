"""Servers that an operator has already: how we reach them, and whom we take for them.

`manage.py migrate` goes past the pooler (management/).
"""
