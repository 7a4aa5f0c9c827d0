# expect: Finished
"""A double fork in a session of its own, with its pipes closed: gone when the script is."""

import os
import time
from contextlib import suppress

with suppress(BlockingIOError):  # where the sandbox is one process
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.closerange(0, 100)
            time.sleep(10_000)
        os._exit(0)
    os.wait()
print("blocked")
