# expect: Finished
import ctypes
import errno
import fcntl

TIOCSTI, TIOCLINUX = 0x5412, 0x541C
libc = ctypes.CDLL("libc.so.6", use_errno=True)
done = []
for fd in range(3):
    for request in (TIOCSTI, TIOCLINUX):
        try:
            fcntl.ioctl(fd, request, b"x")
            done.append(fd)
        except OSError as error:
            if error.errno != errno.EPERM:  # refused by the filter, not for want of a terminal
                done.append(fd)
    if libc.ioctl(fd, ctypes.c_ulong((1 << 40) | TIOCSTI), b"x") == 0 or ctypes.get_errno() != errno.EPERM:
        done.append(fd)
print(f"ESCAPED: {done}" if done else "blocked")
