"""Benchmarks of the engine: each one measures, prints a table and names its machine."""
