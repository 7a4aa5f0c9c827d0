"""A relay: holds the weights of one host in shared memory and forwards them to the next relay."""
