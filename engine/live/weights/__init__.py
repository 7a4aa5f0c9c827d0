"""Weights on their way between processes."""
