"""A relay: the weights of one host, in shared memory, and their way to the next relay.

actor     the process; sweeps what dead ones left
body      carries out what the brain wants: memory, hashes, deltas, links
buffers   memory that fills chunk by chunk, from several links at once
assembly  a version made from what the trainer offered, from chunks or from deltas
"""
