"""A relay: the weights of one host, in shared memory, and their way to the next relay.

view      what it tells whoever looks on
actor     the process; sweeps what dead ones left
body      the brain's effects carried out: memory, hashes, deltas, links
buffers   memory that fills chunk by chunk, from several links at once
memory    opened, populated and freed beside, and ready before the next version
sealing   what lies here, by sha256, when nothing waits
assembly  a version made from the trainer's offer, from chunks or from deltas
"""
