"""A relay: the weights of one host, in shared memory, and their way to the next relay.

actor     the process; sweeps what dead ones left
body      the brain's effects carried out: memory, hashes, deltas, links
buffers   memory that fills chunk by chunk, from several links at once
memory    opened, populated and freed beside, and ready before the next version
assembly  a version made from the trainer's offer, from chunks or from deltas
"""
