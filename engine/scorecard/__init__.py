"""Live runs kept by `bench schedules`, each compared with its simulation."""
