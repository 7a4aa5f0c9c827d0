"""Checkpoints: written whole or not at all, by every rank its own part, and the same from every trainer."""
