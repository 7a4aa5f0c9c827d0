"""An attempt's checkpoints: written in parallel with training, verified, and stored beyond the node."""
