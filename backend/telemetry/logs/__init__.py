"""Log lines of a job's parts."""
