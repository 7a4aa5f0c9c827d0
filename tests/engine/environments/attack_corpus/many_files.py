# expect: Finished
"""Empty files fill no disk, but each takes a kilobyte of the kernel's memory."""

from pathlib import Path

number = 0
try:
    while number <= 10_000:
        Path(f"/tmp/{number}").touch()
        number += 1
    print("ESCAPED")
except OSError:
    print("blocked" if number > 1_000 else "refused too early")
