# expect: TimedOut
"""Whoever waits for the end of its output must not take that for its end."""

import os
import time

os.closerange(0, 1_000)
time.sleep(10_000)
