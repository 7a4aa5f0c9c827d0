"""Whose user a sandbox is: one that owns nothing here, and never the engine's own where the kernel allows another.

the engine is                             a sandbox is
root                                      a number far above the users of this machine
an ordinary user with subordinate ones    one of these (/etc/subuid, /etc/subgid; newuidmap, of the package uidmap)
any other: in a container, mostly         that user

An ordinary user is given his subordinate ones by a name space in which he himself is root: from there on a sandbox is
begun as by root. The engine owns that name space, so that it may end whatever runs in it.
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
"""Subordinate users, below which two sandboxes would often be the same one, whose processes count as one's."""
_ASKS_S: Final = 10.0


class Stranger(NamedTuple):
    """Words that start a program: `rules` makes it root, `becomes` a user that owns nothing."""

    rules: tuple[str, ...]
    becomes: tuple[str, ...]


def stranger() -> Stranger | None:
    """Another user for each call; none where the kernel lets the engine be nobody but itself."""
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
    """As many as users and groups both have, found by becoming one of them."""
    rules = [program_at("unshare"), *_MAPS]
    shows = [*rules, *_becomes(1), program_at("cat"), "/proc/self/uid_map", "/proc/self/gid_map"]
    try:
        done = subprocess.run(shows, capture_output=True, text=True, timeout=_ASKS_S, env={}, cwd="/")
    except (OSError, subprocess.TimeoutExpired):
        return 0
    if done.returncode != 0:  # no newuidmap, no row of his in /etc/subuid, or an unshare before util-linux 2.38
        return 0
    rows = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    counts = [count for inside, _, count in rows if inside == 1]
    return min(counts) if len(counts) == 2 else 0
