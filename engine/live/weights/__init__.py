"""Transfers of weights between processes: shared memory, links, the trainer's handover."""
