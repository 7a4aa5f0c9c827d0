"""Training in several processes by DeepSpeed's ZeRO."""
