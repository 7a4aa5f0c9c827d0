"""Rows of the decode batch: the state that a step needs of each, and the keys and values that it attends to."""
