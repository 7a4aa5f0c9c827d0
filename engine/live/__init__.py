"""Bodies on Ray, their placement, and the driver: the only place that wires things."""
