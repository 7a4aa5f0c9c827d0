# expect: Finished
import os
import stat
from pathlib import Path

done = []
for target in ("/etc/shadow", "/proc/1/root/etc/shadow", "/dev/mem", "/dev/kmsg", "/dev/kvm", "/dev/fuse", "/dev/tty"):
    link = Path("/tmp", target.replace("/", "_"))
    link.symlink_to(target)
    try:
        link.open("rb").close()
        done.append(target)
    except OSError:
        pass
for kind, device in ((stat.S_IFBLK, os.makedev(8, 0)), (stat.S_IFCHR, os.makedev(1, 1))):
    try:
        os.mknod("/tmp/device", 0o600 | kind, device)
        done.append("mknod")
    except OSError:
        pass
print(f"ESCAPED: {done}" if done else "blocked")
