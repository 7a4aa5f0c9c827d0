"""One process of the engine: its threads, its work and its files."""
