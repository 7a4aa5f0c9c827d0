"""The new job form, and the same spec as code."""
