"""A step recorded and trained again, to the bit: `python -m engine replay-step`."""
