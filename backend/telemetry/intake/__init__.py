"""The ways by which facts arrive."""
