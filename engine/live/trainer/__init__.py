"""The trainer: trains, hands versions over, has checkpoints written.

actor  builds the backend that the spec asks for
body   carries out what the brain wants
ranks  several devices: every rank but the first in an actor of its own
"""
