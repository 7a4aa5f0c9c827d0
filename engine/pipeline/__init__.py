"""The brains: pure state machines, `handle(message, now) -> effects`, driven by live bodies and simulated ones."""
