"""The steps of a GPU check, most important first, each in a process of its own with a time limit.

    OUT/steps.jsonl    a line a step: name, ok, seconds, rows, remarks
    OUT/NAME.log       what the step's process wrote
    OUT/measured.md    the tables, in the form of engine/MEASURED.md

Invariants:
- a step that fails, hangs or exceeds the time left is a line with its reason, and the next step runs;
- a line is written when its step ends, so an interrupted check keeps what was measured;
- every file stays below `LARGEST_FILE`.

Imports nothing but Python's own library and `engine.scorecard.tables`.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from engine.scorecard.tables import table

TOP: Final = Path(__file__).resolve().parents[2]
TOTAL_S: Final = 480.0
LARGEST_FILE: Final = 16 * 2**20
TOLD_BYTES: Final = 2_000
"""Of the end of a failed step's log, in its line."""
SOONEST_S: Final = 5.0
"""A step with less time left is not begun: importing torch takes as long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    name: str
    limit_s: float
    words: tuple[str, ...]
    """For `python -m tests.bench.engine`."""
    takes_seconds: bool = False
    """Stops by itself after `--seconds` and reports the figures measured so far."""


STEPS: Final = (
    Step(name="trainer", limit_s=60, words=("agreement", "--parts", "trainer")),
    Step(name="attention", limit_s=40, words=("agreement", "--parts", "attention")),
    Step(name="rollouts", limit_s=60, words=("agreement", "--parts", "rollouts")),
    Step(name="decode", limit_s=150, words=("gpu", "--parts", "torch", "--repeats", "3"), takes_seconds=True),
    Step(name="passes", limit_s=120, words=("gpu", "--parts", "trainer", "--repeats", "5"), takes_seconds=True),
    Step(name="replay", limit_s=50, words=("agreement", "--parts", "replay")),
)
BEGINS_LAST: Final = 0.7
"""Of a step's limit: after that, a step that stops by itself begins no further figure."""


def main(words: Sequence[str]) -> int:
    """0: every step ran and every gap is within its bound."""
    parser = argparse.ArgumentParser(prog="infra/gpu/check.sh", description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="a folder for the results")
    parser.add_argument("--rehearse", action="store_true", help="on the CPU, at a small scale")
    parser.add_argument("--only", nargs="+", choices=[step.name for step in STEPS], help="default: all")
    parser.add_argument("--seconds", type=float, default=TOTAL_S, help="for all steps; default: %(default).0f")
    arguments = parser.parse_args(list(words))
    out = arguments.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    chosen = [step for step in STEPS if not arguments.only or step.name in arguments.only]
    until = time.monotonic() + arguments.seconds
    lines = []
    with (out / "steps.jsonl").open("w") as file:
        for line in run_steps(chosen, out, device="cpu" if arguments.rehearse else "cuda", until=until):
            lines.append(line)
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())
            _say(line)
    (out / "measured.md").write_text("\n".join(as_document(lines)) + "\n")
    return 0 if all(line["ok"] for line in lines) else 1


def run_steps(steps: Sequence[Step], out: Path, *, device: str, until: float) -> Iterator[dict[str, Any]]:
    for step in steps:
        left_s = until - time.monotonic()
        if left_s < SOONEST_S:
            yield {"step": step.name, "ok": False, "seconds": 0.0, "why": "not begun, for want of time"}
        else:
            yield run_step(step, out, device=device, limit_s=min(step.limit_s, left_s))


def run_step(step: Step, out: Path, *, device: str, limit_s: float) -> dict[str, Any]:
    words = [*step.words, "--device", device, "--json"]
    if step.takes_seconds:
        words += ["--seconds", str(BEGINS_LAST * limit_s)]
    log, started = out / f"{step.name}.log", time.monotonic()
    code = _run([sys.executable, "-m", "tests.bench.engine", *words], log, limit_s=limit_s)
    line: dict[str, Any] = {"step": step.name, "seconds": round(time.monotonic() - started, 1)}
    if code is None:
        return {**line, "ok": False, "why": f"ended after {limit_s:.0f} s", "log": _end_of(log)}
    report = _report_in(log) if code == 0 else None
    if report is None:
        return {**line, "ok": False, "why": f"ended with {code} and no result", "log": _end_of(log)}
    rows, remarks = report["rows"], report["remarks"]
    beyond = [str(row["figure"]) for row in rows if row.get("ok") == 0]
    why = f"beyond their bounds: {', '.join(beyond)}" if beyond else "" if rows else "; ".join(remarks)
    return {**line, "ok": not why, "why": why, "machine": report["machine"], "rows": rows, "remarks": remarks}


def _run(command: Sequence[str], log: Path, *, limit_s: float) -> int | None:
    """The exit code; None: it was ended at its limit, with all that it had started."""
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, cwd=TOP, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            return process.wait(timeout=limit_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            _end_group(process)
            _cut(log)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _cut(log: Path) -> None:
    if log.stat().st_size > LARGEST_FILE // 2:
        log.write_bytes(_tail(log, LARGEST_FILE // 2))


def _tail(log: Path, num_bytes: int) -> bytes:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - num_bytes))
        return file.read()


def _end_of(log: Path) -> str:
    return _tail(log, TOLD_BYTES).decode(errors="replace")


def _report_in(log: Path) -> dict[str, Any] | None:
    """The last report in the log, among the lines of libraries."""
    for line in reversed(_tail(log, LARGEST_FILE // 2).decode(errors="replace").splitlines()):
        if line.startswith('{"bench"'):
            report: dict[str, Any] = json.loads(line)
            return report
    return None


def as_document(lines: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    machines = [line["machine"] for line in lines if line.get("machine")]
    if machines:
        yield ", ".join(f"{name} {value}" for name, value in machines[0].items() if name != "load_before")
    for line in lines:
        yield f"\n## {line['step']}: {'ok' if line['ok'] else line['why']}, {line['seconds']:.0f} s\n"
        if line.get("rows"):
            yield from table(line["rows"])
        yield from (f"\n{remark}" for remark in line.get("remarks", []))


def _say(line: Mapping[str, Any]) -> None:
    words = f"{line['step']:<10} {'ok' if line['ok'] else 'FAILED'} after {line['seconds']:.0f} s {line.get('why', '')}"
    sys.stdout.write(words.rstrip() + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
