"""Words of the engine as a tenant may read them: no path of a host, no line of our own code.

    File "/srv/laminar/engine/live/run/attempt.py", line 88, in run     ours: left out, with the line that it shows
    File "/box/main.py", line 3, in respond                            the customer's: stays
    cannot read /mnt/fsx/store/models/big/config.json                  ──▶ cannot read …/config.json

Invariants:
- what a customer's own code said and where, stays: it runs in /box, and its frames are told;
- of an absolute path the last name is left; addresses (https://…) and what every machine has (/dev, /proc) stay.
"""

import re
from collections.abc import Iterator
from typing import Final

_FRAME: Final = re.compile(r'\s*File "(?P<path>[^"]*)"(?:, line \d+.*)?$')
_HEADER: Final = re.compile(r"\s*Traceback \(most recent call last\):\s*$")
_OF_EVERYBODY: Final = ("/box/", "/dev/", "/proc/", "/sys/", "/api/")
_OUR_OWN_IN_THE_BOX: Final = frozenset({"/box/bootstrap.py", "/box/serve.py", "/box/frames.py"})
_PATH: Final = re.compile(r"(?<![\w:/.…])(?:file://)?(?P<path>(?:/[^\s/:\"'`,;()\[\]{}<>|=]+){2,})/?")
_STORED: Final = re.compile(r"(?:^|/)(jobs/.+)$")


def for_tenants(text: str) -> str:
    if "/" not in text:
        return text
    return _PATH.sub(_last_name, "\n".join(_without_our_frames(text.split("\n"))))


def place_in_store(uri: str) -> str:
    """Of an address in the store, what does not say where the store is."""
    found = _STORED.search(uri)
    return found[1] if found else for_tenants(uri)


def _last_name(found: re.Match[str]) -> str:
    path = found["path"]
    return found[0] if path.startswith(_OF_EVERYBODY) else f"…/{path.rpartition('/')[2]}"


def _without_our_frames(lines: list[str]) -> Iterator[str]:
    """A frame is its line and what is indented below it."""
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
            headers, indent_of_ours = [line], None  # told only if a frame is
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
