# expect: TimedOut
"""The end of its output is not the end of the process."""

import os
import time

os.closerange(0, 1_000)
time.sleep(10_000)
