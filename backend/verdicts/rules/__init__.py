"""The rules of the verdict: observations of a run in, findings out. Pure: no clock, no database.

Each threshold is next to its rule, with its reason; tests/verdict checks them against recorded runs.
"""
