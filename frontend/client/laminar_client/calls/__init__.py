"""The calls of the API. Each is written once, as a function that returns a procedure (see `wire`)."""
