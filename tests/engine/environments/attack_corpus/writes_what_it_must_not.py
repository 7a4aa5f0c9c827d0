# expect: Finished
from pathlib import Path

done = []
for folder in ("/", "/box", "/python", "/python/lib", "/packages", "/dev", "/lib64"):
    try:
        Path(folder, "planted").write_text("x")
        done.append(folder)
    except OSError:
        pass
try:
    Path("/box/main.py").chmod(0o777)
    done.append("chmod")
except OSError:
    pass
print(f"ESCAPED: {done}" if done else "blocked")
