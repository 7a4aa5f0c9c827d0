"""Several processes by torch's FSDP2."""
