"""`python -m infra.rehearse`: docker-compose.yml as an operator runs it, with a container engine of its own.

first process of this command          fetch, namespaces, at the end: everything removed
  └─ itself, within their network      the parts, which reach the containers by address
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

import httpx

from infra.local.home import PROJECT
from infra.rehearse import debian, enclosure, wheels
from infra.rehearse.parts import PARTS, run_parts
from infra.rehearse.work import Work, stage
from infra.setup.terminal import Refusal, say

NEEDED_GB = 25


def main() -> int:
    options = _parser().parse_args()
    work = Work(folder=Path(options.work or tempfile.mkdtemp(prefix="laminar-rehearsal-")).resolve())
    try:
        if options.within:
            run_parts(work, options.only, without=options.without)
            return 0
        return _from_outside(work, options)
    except (Refusal, AssertionError, httpx.HTTPError) as wrong:
        say(f"error: {wrong}")
        return 1


def _from_outside(work: Work, options: argparse.Namespace) -> int:
    if options.only == "remove":
        return _remove(work)
    check_machine(work)
    code = 1
    signal.signal(signal.SIGTERM, _to_the_end)
    try:
        fetch(work)
        enclosure.begin(work)
        same = [sys.executable, "-m", "infra.rehearse", *sys.argv[1:], "--within", "--work", str(work.folder)]
        code = subprocess.run([*enclosure.in_its_network(work), *same], cwd=PROJECT).returncode
    finally:
        if options.keep:
            say(f"Kept: everything runs on; --work {work.folder} --only PART continues with it, --only remove ends it.")
        else:
            code = _remove(work) or code
    return code


def _to_the_end(*_: object) -> NoReturn:
    """Turns a signal into an error, so that everything is removed."""
    raise Refusal("ended by a signal")


def fetch(work: Work) -> None:
    work.take_folder()
    debian.fetch_tools(work)
    debian.fetch_debians(work)
    wheels.fetch_servers(work)
    wheels.fetch_torch(work)
    work.copy_project()


def check_machine(work: Work) -> None:
    if os.geteuid() != 0:
        raise Refusal("a container engine of its own needs root: run `make rehearse` as root.")
    missing = [
        name for name in ("apt-get", "unshare", "nsenter", "pivot_root", "ip", "openssl") if not shutil.which(name)
    ]
    if missing:
        raise Refusal(
            f"this machine has no {', '.join(missing)}: on Debian `apt-get install util-linux iproute2 openssl`."
        )
    if not Path("/dev/net/tun").exists():
        raise Refusal("there is no /dev/net/tun, by which the containers reach the network: `modprobe tun`.")
    parent = next(folder for folder in (work.folder, *work.folder.parents) if folder.is_dir())
    free = shutil.disk_usage(parent).free / 1e9
    if free < NEEDED_GB and not work.tree.exists():
        raise Refusal(f"{parent} has {free:.0f} GB free, a rehearsal takes {NEEDED_GB}: name another with --work.")


def _remove(work: Work) -> int:
    with stage("everything removed"):
        enclosure.end(work)
        if work.is_ours:
            shutil.rmtree(work.folder)
        left = enclosure.left_behind(work)
    if left:
        say("Left behind: " + ", ".join(left))
    return 1 if left else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m infra.rehearse", description="docker-compose.yml, rehearsed")
    parser.add_argument("--work", help="folder for everything (a new one in TMPDIR); afterwards removed")
    parser.add_argument("--keep", action="store_true", help="leave it running")
    parser.add_argument("--only", choices=[*PARTS, "remove"], help="one part, where those before it were kept")
    parser.add_argument("--without", action="append", default=[], choices=PARTS, help="a part to leave out")
    parser.add_argument("--within", action="store_true", help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
