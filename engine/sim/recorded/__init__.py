"""What a live run told of itself, for the simulator."""
