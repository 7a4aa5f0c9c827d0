"""Records a step and trains it again, bit for bit: `python -m engine replay-step`."""
