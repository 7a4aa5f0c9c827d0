"""The processes of the simulated cluster, their worker threads, and the network between them."""
