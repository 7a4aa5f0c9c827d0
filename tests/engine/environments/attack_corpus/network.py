# expect: Finished
import socket

done = []
for family in (socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK, socket.AF_PACKET):
    try:
        socket.socket(family, socket.SOCK_RAW if family == socket.AF_PACKET else socket.SOCK_DGRAM)
        done.append(family.name)
    except OSError:
        pass
try:
    socket.create_connection(("127.0.0.1", 22), timeout=1)
    done.append("connect")
except OSError:
    pass
print(f"ESCAPED: {done}" if done else "blocked")
