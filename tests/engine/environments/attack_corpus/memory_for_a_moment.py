# expect: OutOfMemory, alone: Finished
"""Processes that exceed the limit together, too briefly for periodic sampling to detect."""

import os

NUM, EACH = 4, 60 << 20
pipes = [os.pipe() for _ in range(NUM)]
go = os.pipe()
try:
    for _, has_it in pipes:
        if os.fork() == 0:
            kept = b"x" * EACH
            os.write(has_it, b"x")
            os.read(go[0], 1)
            os._exit(0)
    for reads, _ in pipes:
        os.read(reads, 1)
    os.write(go[1], b"x" * NUM)
    print("ESCAPED")
except BlockingIOError:
    print("blocked")
