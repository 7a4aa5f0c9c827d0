"""An attempt's checkpoints: written beside training, verified, kept beyond the node."""
