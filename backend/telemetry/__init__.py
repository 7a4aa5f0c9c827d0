"""Reports of the engine: taken in once, kept small, drawn live."""
