"""Data: prompts out, trajectories in, batches to the trainer; everything logged before it is answered."""
