"""Environments: questions for a model, tools that it may use, and the worth of its answers."""
