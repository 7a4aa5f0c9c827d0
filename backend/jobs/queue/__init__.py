"""The queue of a pool: which job starts next, which is preempted, and why a job waits."""
