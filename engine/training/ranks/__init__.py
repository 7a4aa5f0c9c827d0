"""Ranks: this process among those that train one model."""
