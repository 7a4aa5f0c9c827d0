"""`python -m infra.local.halves`: every test, in two processes side by side, each with a throw-away site of its own.

Tests that start a Ray wait most of the time, so the others run beside them; two Rays at once would be too much for two
cores. The second half's words are kept until the first one is done, so that neither breaks the other's lines.
"""

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import IO

WITHOUT_RAY = "not ray and not e2e and not soak"
WITH_RAY = "(ray or e2e) and not soak"


def main(arguments: Sequence[str]) -> int:
    with tempfile.TemporaryFile() as kept:
        behind = _start(WITH_RAY, arguments, out=kept)
        try:
            code = _start(WITHOUT_RAY, arguments, out=None).wait()
            print("\nThe tests with Ray are still running; what they say comes when they are done.", flush=True)
            code_behind = behind.wait()
        finally:
            if behind.poll() is None:  # interrupted
                behind.terminate()
                behind.wait()
        kept.seek(0)
        print(kept.read().decode(errors="replace"), end="", flush=True)
    return code or code_behind


def _start(marks: str, arguments: Sequence[str], *, out: IO[bytes] | None) -> subprocess.Popen[bytes]:
    pytest = [sys.executable, "-m", "pytest", "-m", marks, *arguments]
    command = [sys.executable, "-m", "infra.local.testing", "--", *pytest]
    return subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT if out is not None else None)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
