"""Pools of devices: capacity, quotas, and the pure scheduling decision."""
