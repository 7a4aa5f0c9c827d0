"""Pools of devices: capacity, quotas, and the pure decision who starts now."""
