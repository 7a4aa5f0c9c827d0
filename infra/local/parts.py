"""`python -m infra.local.parts`: every test, in three processes side by side, each with a throw-away site of its own.

One process alone would leave a second core idle, and whoever waits for a browser or a server leaves the first one idle
too. Two Rays at once would be too much, so all that starts one is in the same part. What the other parts say is kept
until the first one is done, so that none breaks another's lines.

Invariant: each test but the soaking ones is in exactly one part.
"""

import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import IO, Final

WITHOUT_RAY: Final = "not ray and not e2e and not soak"
PARTS: Final[Mapping[str, Sequence[str]]] = {
    "around the engine": ["-m", WITHOUT_RAY, "--ignore=tests/engine"],
    "of the engine": ["-m", WITHOUT_RAY, "tests/engine"],
    "with Ray": ["-m", "(ray or e2e) and not soak"],
}


def main(arguments: Sequence[str]) -> int:
    with ExitStack() as until_the_end:
        running: dict[str, tuple[subprocess.Popen[bytes], IO[bytes] | None]] = {}
        for name, chosen in PARTS.items():
            out = until_the_end.enter_context(tempfile.TemporaryFile()) if running else None
            process = _start([*chosen, *arguments], out=out)
            until_the_end.callback(_end, process)
            running[name] = process, out
        codes = []
        for name, (process, kept) in running.items():
            if kept is not None:
                print(f"\nThe tests {name} say when they are done:", flush=True)
            codes.append(process.wait())
            if kept is not None:
                kept.seek(0)
                print(kept.read().decode(errors="replace"), end="", flush=True)
    return next((code for code in codes if code), 0)


def _start(arguments: Sequence[str], *, out: IO[bytes] | None) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "infra.local.testing", "--", sys.executable, "-m", "pytest", *arguments]
    return subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT if out is not None else None)


def _end(process: subprocess.Popen[bytes]) -> None:
    """If it was interrupted."""
    if process.poll() is None:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
