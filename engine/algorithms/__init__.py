"""Losses and advantages, which turn rewards into learning: pure functions of tensors, chosen by the spec."""
