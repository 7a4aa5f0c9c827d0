# expect: Finished
import os
import resource

done = []
for name in ("RLIMIT_AS", "RLIMIT_NPROC", "RLIMIT_FSIZE", "RLIMIT_NOFILE", "RLIMIT_CPU"):
    try:
        resource.setrlimit(getattr(resource, name), (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        done.append(name)
    except (ValueError, OSError):
        pass
for change in (os.setuid, os.setgid):
    try:
        change(0 if os.getuid() else 1)
        done.append(change.__name__)
    except OSError:
        pass
try:
    os.nice(-5)
    done.append("nice")
except OSError:
    pass
print(f"ESCAPED: {done}" if done else "blocked")
