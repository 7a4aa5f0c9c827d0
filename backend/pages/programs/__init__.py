"""Pages for API users: the client, the guide and the reference."""
