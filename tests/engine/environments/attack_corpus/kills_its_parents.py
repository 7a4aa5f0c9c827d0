# expect: Finished
import os
import signal
from contextlib import suppress

for pid in (os.getppid(), 1, -1):
    with suppress(OSError):
        os.kill(pid, signal.SIGKILL)
print("blocked")
