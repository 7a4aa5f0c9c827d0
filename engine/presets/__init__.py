"""Presets: values that follow from a model's shape and a pool's devices."""
