"""Namespaces of a rehearsal's own: processes, mounts, network cards and firewall rules end with the first process.

    this machine ── slirp4netns (a user's process, no rule, no bridge) ── tap0 10.0.2.100
                                                                          docker0, containers

Invariant: to the machine outside an enclosure is one process, and a folder of control groups that `end` removes.
"""

import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from infra.rehearse.debian import tool
from infra.rehearse.work import Work, stage
from infra.setup.terminal import Refusal

ADDRESS = "10.0.2.100"  # what slirp4netns gives to tap0: containers reach a server of the enclosure by it
CONTROL_GROUPS = Path("/sys/fs/cgroup")
# Its root is the tree, truly and not by chroot: what joins a container by its mount namespace would come out above it.
FIRST_PROCESS = """
set -e
mount --make-rprivate /
ip link set lo up
mount --bind "$TREE" "$TREE"
for each in proc sys dev; do mount --rbind /$each "$TREE/$each"; done
mkdir -p "$TREE$SHARED"
mount --bind "$SHARED" "$TREE$SHARED"
echo nameserver 10.0.2.3 > "$TREE/etc/resolv.conf"
cd "$TREE"
mkdir -p above
pivot_root . above
umount --lazy /above
exec /usr/bin/tini-static -s -- sh -c "exec sleep infinity" "$SHARED"
"""


def begin(work: Work) -> None:
    if number(work):
        return
    with stage("namespaces of its own"):
        work.shared.mkdir(exist_ok=True)
        flags = ["--mount", "--net", "--pid", "--ipc", "--uts", "--fork", "--kill-child", "--mount-proc"]
        where = {"TREE": str(work.tree), "SHARED": str(work.shared)}
        started = work.start(["unshare", *flags, "sh", "-c", FIRST_PROCESS], "enclosure", **where)
        deadline = time.monotonic() + 30
        while not (found := _first_of(started, work)):
            if started.poll() is not None or time.monotonic() > deadline:
                raise Refusal(f"no namespaces: {(work.folder / 'enclosure.log').read_text()[-500:]}")
            time.sleep(0.1)
        work.first_process.write_text(str(found))
        network = [*tool(work, "slirp4netns"), "--configure", "--mtu=65520", "--disable-host-loopback"]
        # One of its processes, yet outside its network, which it connects with this machine's.
        among_them = ["nsenter", f"--target={found}", "--pid"]
        work.start([*among_them, *network, "--netns-type=path", f"/proc/{found}/ns/net", "tap0"], "network")
        while not _has_an_address(found):
            if time.monotonic() > deadline:
                raise Refusal(f"no network: {(work.folder / 'network.log').read_text()[-500:]}")
            time.sleep(0.1)


def within(work: Work) -> list[str]:
    """The words before a command that make it run within, below the tree."""
    return ["nsenter", f"--target={number(work)}", "--mount", "--net", "--pid", "--ipc", "--uts"]


def in_its_network(work: Work) -> list[str]:
    """The words before a program of this machine that is to reach the containers."""
    return ["nsenter", f"--target={number(work)}", "--net"]


def number(work: Work) -> int | None:
    """The first process, if it lives: numbers are given again, so its command line must be ours."""
    with suppress(OSError, ValueError):
        found = int(work.first_process.read_text())
        if str(work.shared) in Path(f"/proc/{found}/cmdline").read_text():
            return found
    return None


def end(work: Work) -> None:
    """Kills the first process: the kernel ends everything within, and unmounts. Then the control groups are free."""
    if found := number(work):
        os.kill(found, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while groups := sorted(CONTROL_GROUPS.glob(f"**/{work.control_group}/**/"), reverse=True):
        for group in groups:
            with suppress(OSError):  # somebody within it is still ending
                group.rmdir()
        if time.monotonic() > deadline:
            break
        time.sleep(0.1)


def left_behind(work: Work) -> list[str]:
    """What of this rehearsal is still on this machine."""
    name = str(work.folder)
    left = [f"mount {line.split()[1]}" for line in Path("/proc/mounts").read_text().splitlines() if name in line]
    left += [f"control group {group}" for group in CONTROL_GROUPS.glob(f"**/{work.control_group}")]
    mine = {os.getpid(), os.getppid()}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if int(process.name) not in mine and _belongs(process, name):
                left.append(f"process {process.name}")
    return left + ([f"folder {name}"] if work.folder.exists() else [])


def _belongs(process: Path, name: str) -> bool:
    return any(str((process / link).readlink()).startswith(name) for link in ("root", "cwd", "exe"))


def _first_of(started: "subprocess.Popen[bytes]", work: Work) -> int | None:
    """The child of `unshare`, once it has become what it is to be."""
    with suppress(OSError):
        for child in Path(f"/proc/{started.pid}/task/{started.pid}/children").read_text().split():
            if "tini-static" in Path(f"/proc/{child}/cmdline").read_text():
                return int(child)
    return None


def _has_an_address(first: int) -> bool:
    return "tap0" in Path(f"/proc/{first}/net/route").read_text()
