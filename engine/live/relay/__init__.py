"""A relay: the weights of one host, in shared memory, and their way to the next relay."""
