"""A step: trajectories as tensors, their losses, the updates made of them, whoever applies gradients."""
