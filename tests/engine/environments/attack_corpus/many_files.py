# expect: Killed
"""Empty files fill no disk, but each takes a kilobyte of the kernel's memory."""

from pathlib import Path

number = 0
while True:
    Path(f"/tmp/{number}").touch()
    number += 1
