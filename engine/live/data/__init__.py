"""Data: prompts out, trajectories in, batches to the trainer; every change is logged before it is acknowledged."""
