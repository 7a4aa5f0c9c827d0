"""Losses and advantages: pure functions of tensors, selected by the job's spec."""
