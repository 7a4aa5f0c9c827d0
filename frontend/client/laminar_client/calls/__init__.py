"""Every call of the API, each written once: a function that makes a procedure (see `wire`)."""
