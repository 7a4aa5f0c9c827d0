"""How long a job's pieces take: the arithmetic of a step, and bounds of its time from below and from above.

step     its arithmetic, and its shortest time on a known device
slowest  rates that honest work is never below
limits   the time that a start, a step and a pause may take at them
"""
