"""Requests to a job that is there."""
