"""Weights out of a trainer and on their way to the replicas."""
