"""Simulated bodies of the parts, and the disks that survive their processes."""
