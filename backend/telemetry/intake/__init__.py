"""The doors by which facts come in."""
