"""Weights from a trainer to the replicas."""
