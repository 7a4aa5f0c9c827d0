"""One command of the set-up: a line on the terminal, everything else in the log."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from infra.setup.diagnoses import meaning_of
from infra.setup.paths import Paths
from infra.setup.terminal import Refusal, say, show

LAST_LINES = 12


def run_stage(paths: Paths, title: str, command: Sequence[str]) -> None:
    started = time.monotonic()
    with paths.log.open("a", encoding="utf-8") as log:
        log.write(f"\n$ {' '.join(command)}\n")
        log.flush()
        begins_at = log.tell()
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=clean_environment())
        code = watch(process, title, started)
    say(f"{time.monotonic() - started:6.1f} s" if code == 0 else "failed")
    if code != 0:
        with paths.log.open(encoding="utf-8", errors="replace") as log:
            log.seek(begins_at)
            raise Refusal(explain_failure(title, log.read() + ("\nKilled" if code == -9 else ""), paths.log))


def watch(process: subprocess.Popen[bytes], title: str, started: float) -> int:
    """Prints the title; on a terminal the seconds tick behind it. The caller ends the line."""
    ticking = sys.stdout.isatty()
    show(f"  {title:<24}")
    try:
        while True:
            try:
                code = process.wait(timeout=0.5)
                show(f"\r  {title:<24}" if ticking else "")
                return code
            except subprocess.TimeoutExpired:
                if ticking:
                    show(f"\r  {title:<24}{time.monotonic() - started:6.0f} s")
    except KeyboardInterrupt:
        process.terminate()
        process.wait()
        raise


def clean_environment() -> dict[str, str]:
    """The caller's, mirrors and proxies included, less what would send files or imports elsewhere."""
    elsewhere = {"PYTHONPATH", "PYTHONHOME", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_CONSTRAINT"}
    kept = {name: value for name, value in os.environ.items() if name not in elsewhere}
    return {**kept, "PIP_USER": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}


def explain_failure(title: str, output: str, log: Path) -> str:
    lines = [line for line in output.splitlines() if line.strip()][-LAST_LINES:]
    quoted = "".join(f"\n    {line[:200]}" for line in lines)
    return f"the stage \u201c{title}\u201d failed.{quoted}\n  {meaning_of(output)}\n  The whole output: {log}"
