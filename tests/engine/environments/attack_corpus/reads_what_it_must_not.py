# expect: Finished
"""Only Python, this script and a few devices can be reached; nothing reveals the machine outside."""

import os
from pathlib import Path

ALLOWED = ("/python", "/packages", "/box", "/dev", "/tmp", "/lib")
SECRETS = ("/etc/shadow", "/etc/passwd", "/proc/1/environ", "/proc/self/environ", "/proc/self/mountinfo", "/sys")

found = [path for path in SECRETS if Path(path).exists()]
for folder, _, files in os.walk("/"):
    found += [str(Path(folder, file)) for file in files if not folder.startswith(ALLOWED)]
    found += [str(Path(folder, file)) for file in files if file in ("pyproject.toml", "job.py", ".git")]
shown = {name: value for name, value in os.environ.items() if "SECRET" in name or "/root" in value or "/home" in value}
print(f"ESCAPED: {found} {shown}" if found or shown else "blocked")
