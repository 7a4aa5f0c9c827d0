"""The verdict on a run: whether it is well, why not, and what to do about it."""
