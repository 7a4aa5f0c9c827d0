"""Infrastructure: Laminar set up, run and packaged, by locks, set-up, one-machine supervisor, images."""
