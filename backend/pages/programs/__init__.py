"""Pages for whoever writes programs against this site."""
