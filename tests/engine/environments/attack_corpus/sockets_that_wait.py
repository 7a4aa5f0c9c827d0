# expect: Finished
"""Connections that are never accepted hold the sent bytes, and have no descriptor that a limit could count."""

import socket
from contextlib import suppress

held = 0
try:
    with suppress(BlockingIOError):
        listening = socket.socket(socket.AF_UNIX)
        listening.bind("/tmp/listening")
        listening.listen(4096)
        for _ in range(4096):
            with socket.socket(socket.AF_UNIX) as client:
                client.setblocking(False)
                client.connect("/tmp/listening")
                with suppress(BlockingIOError):
                    while True:
                        held += client.send(bytes(1 << 16))
    print(f"ESCAPED: {held}")
except PermissionError:
    print("blocked")
