"""Transfers keys and values between replicas, after a sample's tokens and never instead of them."""
