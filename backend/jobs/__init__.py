"""Jobs, from submission to their final state."""
