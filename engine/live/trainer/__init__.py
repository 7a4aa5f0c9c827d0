"""The trainer: trains, hands versions over, has checkpoints written.

actor         the backend that the spec asks for, built
body          the brain's effects carried out
batch         records of finished groups as arrays
ranks         several devices: every rank but the first in an actor of its own
failed_ranks  ranks whose call failed, ended at once
rank_actor    one of those
publishing    versions copied for the relays, by one process or by all ranks
shares        the bytes of a version that a rank writes into its host's memory
"""
