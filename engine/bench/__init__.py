"""Benchmarks: each one measures, prints a table and says which machine it ran on."""
