# expect: Finished
"""Bytes in sockets take the kernel's memory: a lot with larger buffers and sockets sent through sockets."""

import array
import socket
from contextlib import suppress

done = []
pair = socket.socketpair()
for option in (socket.SO_SNDBUF, socket.SO_RCVBUF, 32, 33):
    with suppress(PermissionError):
        pair[0].setsockopt(socket.SOL_SOCKET, option, 1 << 24)
        done.append(option)
with suppress(PermissionError):
    pair[0].sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [pair[1].fileno()]))])
    done.append(-1)
kept, held = [*pair], 0
with suppress(OSError):  # no more descriptors
    while True:
        kept += (pair := socket.socketpair())
for end in kept:
    end.setblocking(False)
    with suppress(BlockingIOError):
        while True:
            held += end.send(bytes(1 << 16))
print(f"ESCAPED: {done} {held}" if done or held > 64 << 20 else "blocked")
