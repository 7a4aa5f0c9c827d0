"""How long a job's pieces take: the arithmetic of a step, and bounds of its time from below and from above."""
