"""How Laminar is set up, run and packaged: locks, set-up, one-machine supervisor, images."""
