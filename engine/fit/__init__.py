"""Will it fit: bytes of each device and host, and the arithmetic of a step, from a model's shape and a spec alone."""
