"""Schedules compared, each at its best split of the devices."""
