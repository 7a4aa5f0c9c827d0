"""Pages for operators of the platform; other users get a 404."""
