"""Training in several processes by torch's FSDP2."""
