"""Checkpoints: written whole or not at all, and the same from every trainer.

folder       a folder whose manifest comes last
content      the content of every trainer's
exact_state  moments and random streams, for an exact resume
"""
