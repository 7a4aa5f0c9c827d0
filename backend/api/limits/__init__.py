"""Limits of requests: rates, bodies, connections, admission."""
