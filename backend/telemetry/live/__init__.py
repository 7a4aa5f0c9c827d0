"""Live updates: sockets, their fan-out, and the pull that follows a nudge."""
