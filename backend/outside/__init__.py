"""Servers of the operator: how to reach them, and which certificates to trust.

`manage.py migrate` bypasses the pooler (management/).
"""
