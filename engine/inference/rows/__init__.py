"""Rows of the decode batch: what a step needs of each, and the keys and values that it attends to."""
