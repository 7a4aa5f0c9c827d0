"""A step: trajectories as tensors, their losses, and the updates, for any trainer that applies gradients."""
