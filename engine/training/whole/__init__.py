"""One process holds every weight."""
