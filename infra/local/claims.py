"""Names that one process of this machine has at a time.

A claim is an abstract Unix socket of that name. The kernel grants a name once per network namespace, to the
first user, and drops it when the claiming process ends, however it ends: no file, no stale lock.
"""

import errno
import socket


def claim(name: str) -> socket.socket | None:
    """Held until the socket is closed; None: another has it."""
    holder = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        holder.bind(f"\0laminar-{name}")
    except OSError as error:
        holder.close()
        if error.errno != errno.EADDRINUSE:
            raise
        return None
    return holder
