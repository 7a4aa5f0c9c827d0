"""Settings of a spec: their paths, their conditions, their conflicts, and messages for invalid ones."""
