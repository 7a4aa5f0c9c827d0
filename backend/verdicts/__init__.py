"""The verdict on a run: how it is doing, why, and what to do."""
