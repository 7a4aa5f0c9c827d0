"""The commands of `python -m engine`, apart from `run`."""
