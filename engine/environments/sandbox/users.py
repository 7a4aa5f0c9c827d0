"""The user of a sandbox: one that owns nothing here, and never the engine's own where the kernel allows another.

the engine's user                         the sandbox's user
root                                      a user id far above this machine's users
an ordinary user with subordinate users   one of these (/etc/subuid, /etc/subgid; newuidmap, of the package uidmap)
any other: in a container, mostly         the engine's user

A user namespace in which the engine's user is root maps the subordinate users: inside it a sandbox starts as under
root. The engine owns that namespace, so it may kill every process in it.
"""

import os
import random
import subprocess
from functools import cache
from typing import Final, NamedTuple

from engine.environments.sandbox.starting import program_at

_NOBODIES: Final = (0x60000000, 0x6FFFFFFF)  # far above real users and the ranges that containers are given
_MAPS: Final = ("--user", "--map-root-user", "--map-auto", "--")
_FEWEST: Final = 1_000
"""With fewer subordinate users two sandboxes would often share one, whose limit on processes they then share."""
_PROBE_TIMEOUT_S: Final = 10.0


class Stranger(NamedTuple):
    """Command prefixes: `rules` makes a program root, `becomes` makes it a user that owns nothing."""

    rules: tuple[str, ...]
    becomes: tuple[str, ...]


def stranger() -> Stranger | None:
    """A new random user for each call; None if the kernel does not let the engine become another user."""
    chance = random.SystemRandom()
    if os.geteuid() == 0:
        return Stranger((), _becomes(chance.randint(*_NOBODIES)))
    num_subordinate = _num_subordinate()
    if num_subordinate < _FEWEST:
        return None
    return Stranger((program_at("unshare"), *_MAPS), _becomes(chance.randint(1, num_subordinate)))


def _becomes(number: int) -> tuple[str, ...]:
    return program_at("setpriv"), "--reuid", str(number), "--regid", str(number), "--clear-groups", "--"


@cache
def _num_subordinate() -> int:
    """The smaller count of subordinate users and groups, read after becoming one of them."""
    rules = [program_at("unshare"), *_MAPS]
    probe = [*rules, *_becomes(1), program_at("cat"), "/proc/self/uid_map", "/proc/self/gid_map"]
    try:
        done = subprocess.run(probe, capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S, env={}, cwd="/")
    except (OSError, subprocess.TimeoutExpired):
        return 0
    if done.returncode != 0:  # no newuidmap, no row for the user in /etc/subuid, or an unshare before util-linux 2.38
        return 0
    rows = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    counts = [count for inside, _, count in rows if inside == 1]
    return min(counts) if len(counts) == 2 else 0
