"""Checkpoints: their states, files and evaluations, and the models made from them."""
