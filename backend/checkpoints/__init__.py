"""Checkpoints: their life, their bytes, their measures, and the models made of them."""
