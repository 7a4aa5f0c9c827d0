"""An attempt's checkpoints: written in parallel with training, verified, kept beyond the node."""
