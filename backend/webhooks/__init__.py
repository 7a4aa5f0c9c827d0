"""Messages to a team's own servers on what became of its jobs, signed and tried again."""
