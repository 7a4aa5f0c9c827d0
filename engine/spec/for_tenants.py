"""Redacts the engine's messages for tenants: no paths, processes and lines of code of ours, no terminal colours.

    File "/srv/laminar/engine/live/run/attempt.py", line 88, in run     ours: removed, with the source line below it
    File "/box/main.py", line 3, in respond                            the customer's: kept
    cannot read /mnt/fsx/store/models/big/config.json                  ──▶ cannot read …/config.json
    ray::Body.run() (pid=4711, ip=10.0.0.7, repr=<…>)                  ──▶ ray::Body.run()

Invariants:
- messages and frames of the customer's own code, which runs in /box, are kept;
- terminal sequences are removed whole, in every spelling in which loggers and Ray pass them on; call this before
  control characters are replaced, or the rest of a sequence remains;
- an absolute path is cut to its last name; URLs (https://…) and paths of every machine (/dev, /proc) are kept.
"""

import re
from collections.abc import Iterator
from typing import Final

# The bars are those of exception groups.
_FRAME: Final = re.compile(r'[\s|+]*File "(?P<path>[^"]*)"(?:, line \d+.*)?$')
_HEADER: Final = re.compile(r"[\s|+]*(?:Exception Group )?Traceback \(most recent call last\):\s*$")
_LINKS: Final = re.compile(
    r"\n[\s|+]{0,40}(?:During handling of the above exception, another exception occurred"
    r"|The above exception was the direct cause of the following exception):\s*\n"
)
_COLOURS: Final = re.compile(
    r"\x1b(?:\[[0-9;:?]*[ -/]*[@-~]|\][^\x07\x1b\n]{0,200}(?:\x07|\x1b\\)|[@-Z^_])"
    r"|(?:\x9b|(?:\ufffd|\\x1b|\\u001b|\\033)\[)[0-9;:?]*[A-Za-z]"
)
# Bounded, so that no text makes them scan a long run again from each of its characters.
_RAY_PROCESSES: Final = re.compile(r"[ \t]{0,4}\(pid=\d{1,10}(?:, (?:[^()\n]|\([^()\n]{0,200}\)){0,400})?\)")
_PIDS: Final = re.compile(
    r"(?:^|[,;]?[ \t]{0,4})\b(?:p?pid|process id|worker pid)[ \t]{0,4}[=:][ \t]{0,4}\d{1,10}(?:, ?ip=[0-9a-fA-F.:]+)?",
    re.IGNORECASE | re.MULTILINE,
)
_KEPT_PATHS: Final = ("/box/", "/dev/", "/proc/", "/sys/", "/api/")
_OUR_OWN_IN_THE_BOX: Final = frozenset({"/box/bootstrap.py", "/box/serve.py", "/box/frames.py"})
_PATH: Final = re.compile(r"(?<![\w:/.…])(?:file://)?(?P<path>(?:/[^\s/:\"'`,;()\[\]{}<>|=]+){2,})/?")
_STORED: Final = re.compile(r"(?:^|/)(jobs/.+)$")


def for_tenants(text: str) -> str:
    text = _PIDS.sub("", _RAY_PROCESSES.sub("", _COLOURS.sub("", text)))
    if 'File "' in text or "Traceback (" in text:
        lines = list(_without_our_frames(text.split("\n")))
        text = "\n".join(lines)
        if not any(_FRAME.match(line) for line in lines):
            text = _LINKS.sub("\n", text)
    return _PATH.sub(_cut_path, text) if "/" in text else text


def place_in_store(uri: str) -> str:
    """The part of a stored object's URI that does not reveal where the store is."""
    match = _STORED.search(uri)
    return match[1] if match else for_tenants(uri)


def _cut_path(match: re.Match[str]) -> str:
    path = match["path"]
    return match[0] if path.startswith(_KEPT_PATHS) else f"…/{path.rpartition('/')[2]}"


def _without_our_frames(lines: list[str]) -> Iterator[str]:
    """Removes our frames, each its `File` line and the lines indented below it, and headers that no frame follows."""
    header, indent_of_header = "", 0
    indent_of_ours: int | None = None
    for line in lines:
        indent = len(line) - len(line.lstrip(" \t|+"))
        if _HEADER.match(line):
            header, indent_of_header, indent_of_ours = line, indent, None
            continue
        frame = _FRAME.match(line)
        if frame is not None:
            indent_of_ours = indent if _is_ours(frame["path"]) else None
        elif indent_of_ours is not None and indent <= indent_of_ours:
            indent_of_ours = None
        if indent_of_ours is not None:
            continue
        if header and (frame is not None or indent > indent_of_header):
            yield header
        header = ""
        yield line


def _is_ours(path: str) -> bool:
    if path.startswith("/box/"):
        return path in _OUR_OWN_IN_THE_BOX
    return "/" in path or (path.startswith("<") and path != "<template>")  # Jinja's name of a model's chat template
