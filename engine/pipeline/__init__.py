"""The brains: pure state machines, `handle(message, now) -> effects`, driven by live or simulated bodies."""
