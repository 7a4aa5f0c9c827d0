"""Graders: answers compared, programs run, a customer's own judge."""
