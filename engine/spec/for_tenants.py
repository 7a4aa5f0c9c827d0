"""Redacts the engine's messages for tenants: no paths of hosts, no lines of our own code.

    File "/srv/laminar/engine/live/run/attempt.py", line 88, in run     ours: removed, with the source line below it
    File "/box/main.py", line 3, in respond                            the customer's: kept
    cannot read /mnt/fsx/store/models/big/config.json                  ──▶ cannot read …/config.json

Invariants:
- messages and frames of the customer's own code, which runs in /box, are kept;
- an absolute path is cut to its last name; URLs (https://…) and paths of every machine (/dev, /proc) are kept.
"""

import re
from collections.abc import Iterator
from typing import Final

_FRAME: Final = re.compile(r'\s*File "(?P<path>[^"]*)"(?:, line \d+.*)?$')
_HEADER: Final = re.compile(r"\s*Traceback \(most recent call last\):\s*$")
_KEPT_PATHS: Final = ("/box/", "/dev/", "/proc/", "/sys/", "/api/")
_OUR_OWN_IN_THE_BOX: Final = frozenset({"/box/bootstrap.py", "/box/serve.py", "/box/frames.py"})
_PATH: Final = re.compile(r"(?<![\w:/.…])(?:file://)?(?P<path>(?:/[^\s/:\"'`,;()\[\]{}<>|=]+){2,})/?")
_STORED: Final = re.compile(r"(?:^|/)(jobs/.+)$")


def for_tenants(text: str) -> str:
    if "/" not in text:
        return text
    return _PATH.sub(_cut_path, "\n".join(_without_our_frames(text.split("\n"))))


def place_in_store(uri: str) -> str:
    """The part of a stored object's URI that does not reveal where the store is."""
    match = _STORED.search(uri)
    return match[1] if match else for_tenants(uri)


def _cut_path(match: re.Match[str]) -> str:
    path = match["path"]
    return match[0] if path.startswith(_KEPT_PATHS) else f"…/{path.rpartition('/')[2]}"


def _without_our_frames(lines: list[str]) -> Iterator[str]:
    """Removes our frames: each is its `File` line and the lines indented below it."""
    indent_of_ours: int | None = None
    headers: list[str] = []
    for line in lines:
        frame = _FRAME.match(line)
        indent = len(line) - len(line.lstrip())
        if frame is not None:
            indent_of_ours = indent if _is_ours(frame["path"]) else None
            if indent_of_ours is not None:
                continue
        elif _HEADER.match(line):
            headers, indent_of_ours = [line], None  # kept only if a frame follows
            continue
        elif indent_of_ours is not None and indent > indent_of_ours:
            continue
        else:
            indent_of_ours = None
            if indent == 0 or not line.strip():
                headers = [] if frame is None else headers
        yield from headers
        headers = []
        yield line


def _is_ours(path: str) -> bool:
    if path.startswith("/box/"):
        return path in _OUR_OWN_IN_THE_BOX
    return path.startswith("/") or "/" in path or path.startswith("<frozen")
