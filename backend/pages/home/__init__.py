"""Home: what a person who signs in wants to know first."""
