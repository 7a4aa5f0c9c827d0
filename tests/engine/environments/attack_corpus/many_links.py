# expect: Finished
"""Names without bytes: hard links, symbolic ones, folders."""

import os
from collections.abc import Callable
from pathlib import Path

Path("/tmp/file").touch()
makers: list[Callable[[str], object]] = [
    lambda name: os.link("/tmp/file", name),
    lambda name: Path(name).symlink_to("x" * 100),
    os.mkdir,
]
number = 0
try:
    while number <= 10_000:
        makers[number % len(makers)](f"/tmp/{number:0200d}")
        number += 1
    print("ESCAPED")
except OSError:
    print("blocked" if number > 1_000 else "refused too early")
