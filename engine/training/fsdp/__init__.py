"""Several processes by torch's FSDP2.

trainer   the trainer of one rank
sharding  divided parameters: make, step, read, fill
"""
