"""One execution of a job on the engine, from its beginning to its end."""
