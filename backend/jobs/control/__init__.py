"""Requests to an existing job."""
