"""`python -m infra.local.parts`: every test, in three processes side by side, each with a throw-away site of its own.

One process alone would leave a second core idle, and whoever waits for a browser or a server leaves the first one idle
too. Two Rays at once would be too much, so all that starts one is in the same part; vLLM's own tests are in it too,
which would make the engine's last longest, as what needs no page and little of the platform is with the engine, so that
no part lasts longest by far. The other parts print when the first one is done, so that none breaks another's lines. At
the end stands how long each part and each room took.

Invariants:
- each test but the soaking ones is in exactly one part;
- the part with Ray or vLLM reads only files that name a mark of its own: to import all tests takes four times as long
  and twice the memory. tests/conftest.py holds whoever is marked to naming it in the test's own file.
"""

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Final

from infra.local.test_times import table_of

WITHOUT_RAY: Final = "not ray and not e2e and not vllm and not soak"
WITH_THE_ENGINE: Final = ("engine", "infra", "verdict", "frontend/client", "frontend/programs", "backend/telemetry")
MARKED: Final = re.compile(r"\bmark\.(ray|e2e|vllm)\b")
ROOT: Final = Path(__file__).resolve().parents[2]


def parts(root: Path = ROOT) -> Mapping[str, Sequence[str]]:
    """How pytest is called for each, from this folder."""
    beside = [f"tests/{name}" for name in WITH_THE_ENGINE]
    return {
        "of pages and platform": ["-m", WITHOUT_RAY, "tests", *(f"--ignore={folder}" for folder in beside)],
        "of the engine": ["-m", WITHOUT_RAY, *beside],
        "with Ray or vLLM": ["-m", "(ray or e2e or vllm) and not soak", *_files_with_marks(root)],
    }


def _files_with_marks(root: Path) -> list[str]:
    files = sorted((root / "tests").rglob("test_*.py"))
    return [str(file.relative_to(root)) for file in files if MARKED.search(file.read_text())]


def main(arguments: Sequence[str]) -> int:
    with ExitStack() as until_the_end:
        started_at = time.monotonic()
        reports = Path(until_the_end.enter_context(tempfile.TemporaryDirectory(prefix="laminar-tests-")))
        running: dict[str, tuple[subprocess.Popen[bytes], IO[bytes] | None]] = {}
        for name, chosen in parts().items():
            out = until_the_end.enter_context(tempfile.TemporaryFile()) if running else None
            process = _start([*chosen, f"--junitxml={_report(reports, name)}", *arguments], out=out)
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
        print(table_of({name: _report(reports, name) for name in running}, whole_s=time.monotonic() - started_at))
    return next((code for code in codes if code), 0)


def _report(folder: Path, part: str) -> Path:
    return folder / f"{part.replace(' ', '-')}.xml"


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
