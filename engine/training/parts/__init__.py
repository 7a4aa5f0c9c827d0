"""Parts: what is trained, and the places of public names in it."""
