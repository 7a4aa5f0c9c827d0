"""Several processes by DeepSpeed's ZeRO."""
