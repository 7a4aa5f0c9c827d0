"""Use of devices: settled once, reported by team, project, user, job, day or key."""
