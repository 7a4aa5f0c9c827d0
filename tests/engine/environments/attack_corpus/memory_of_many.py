# expect: OutOfMemory, alone: Finished
"""Processes that exceed the limit only together."""

import os
import time

try:
    for _ in range(6):
        if os.fork() == 0:
            kept = bytearray(os.urandom(1)) * (40 << 20)
            time.sleep(10_000)
    time.sleep(10_000)
except BlockingIOError:
    print("blocked")
