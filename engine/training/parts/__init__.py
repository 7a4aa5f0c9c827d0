"""Trained parts, and the places of public tensors in their parameters."""
