"""The rules of the verdict: what was seen of a run in, what is said of it out. Pure: no clock, no table.

Thresholds stand beside their rule with their reason; tests/verdict holds them against recorded runs.
"""
