"""The line of a pool: who starts next, who gives way, and why somebody waits."""
