"""Run by test_full_disks in a mount namespace of its own: a site with a small disk for each of four folders.

    python -m tests.e2e.on_full_disks HOME

Prints a line for each disk and `ok`, or fails.
"""

import random
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Final

from infra.local.home import Home
from tests.e2e.blows import Blows
from tests.e2e.conftest import Stack, running_stack
from tests.e2e.ends import assert_it_ended_once_and_well, assert_nobodys_bill_is_wrong, lasting

SIZES: Final = {"postgres": "1g", "store": "500m", "valkey": "50m", "logs": "50m"}
FULL_S: Final = 45.0
"""Longer than a lease of a driver."""
STEPS: Final = 60
ANSWERS_WITHIN_S: Final = 400.0
ENDS_WITHIN_S: Final = 900.0
SETTLED_WITHIN_S: Final = 120.0


def main() -> None:
    home = Home(Path(sys.argv[1]))
    with running_stack(home):
        pass  # it has made the folders, which the disks replace
    for name, size in SIZES.items():
        mount(home.folder / name, size)
    with running_stack(home) as stack:
        stack = replace(stack, patience_s=ANSWERS_WITHIN_S)
        for name in SIZES:
            outlast(stack, name)
        assert_nobodys_bill_is_wrong(stack, database=stack.database, settled_within_s=SETTLED_WITHIN_S)
    print("ok")


def mount(folder: Path, size: str) -> None:
    kept, status = folder.with_name(f"{folder.name}.kept"), folder.stat()
    folder.rename(kept)
    folder.mkdir()
    options = f"size={size},mode={status.st_mode & 0o777:o},uid={status.st_uid},gid={status.st_gid}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=True)
    subprocess.run(["cp", "-a", f"{kept}/.", str(folder)], check=True)
    shutil.rmtree(kept)


def outlast(stack: Stack, name: str) -> None:
    """A job that trains while the disk of this folder is full."""
    job = stack.submit_within(ANSWERS_WITHIN_S, lasting(STEPS))["id"]
    stack.wait(job, lambda job: bool(job["step"]), within_s=ENDS_WITHIN_S)
    blows, begun = Blows(stack, random.Random(0)), time.monotonic()
    blows.fill_disk(FULL_S, stack.home.folder / name)
    blows.calm()
    ended = stack.finish(job, within_s=ENDS_WITHIN_S)
    assert_it_ended_once_and_well(stack, ended)
    print(f"{name}: {ended['state']} in attempt {ended['attempt']}, {time.monotonic() - begun:.0f} s", flush=True)


if __name__ == "__main__":
    main()
