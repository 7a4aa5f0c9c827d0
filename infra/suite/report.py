"""The printed report of a run, and its records in `.laminar/`.

`tested.json` (`tested-long.json`) is the record of the last whole run, `tested.jsonl` (`tested-long.jsonl`) holds the
cost of each of its tests; `unsteady.jsonl` collects unsteady tests over all runs. The last lines that are printed name
what is red.
"""

import json
import os
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from infra.suite import results
from infra.suite.results import Result
from infra.suite.verdict import Run, Verdict

ROOT: Final = Path(__file__).resolve().parents[2]
STATE: Final = ROOT / ".laminar"
RECORDS: Final = {"gate": STATE / "tested.json", "long": STATE / "tested-long.json"}
UNSTEADY: Final = STATE / "unsteady.jsonl"
NUM_LINES: Final = 3
"""Lines of each failure's traceback."""
NUM_NAMED: Final = 4
NUM_RED_FILES: Final = 15
NUM_ERRORS: Final = 2
"""The last twenty lines, which a CI job shows, hold the most frequent errors, the list of files and the totals."""
LONGEST_ERROR: Final = 200


def write_record(run: Run, verdict: Verdict, *, minutes: float) -> set[str]:
    """Returns the unsteady tests that were unsteady in an earlier run."""
    commit = _git("rev-parse", "HEAD") or "unknown"
    repeated = _append_unsteady(UNSTEADY, verdict.unsteady, commit=commit)
    if not run.words:  # a part of the suite proves nothing of the whole
        record = {
            "suite": run.suite,
            "commit": commit,
            "clean": not _git("status", "--porcelain"),
            "green": not verdict.red,
            "passed": _count_passed(verdict),
            "red": verdict.red,
            "unsteady": [result.nodeid for result in verdict.unsteady],
            "skipped": dict(results.skips(verdict.tests)),
            "minutes": round(minutes, 1),
            "scale": run.scale,
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        file = RECORDS[run.suite]
        file.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        with file.with_suffix(".jsonl").open("w", encoding="utf-8") as out:
            out.writelines(json.dumps(_cost_of(result)) + "\n" for result in verdict.tests)
    return repeated


def _cost_of(result: Result) -> dict[str, object]:
    seconds, cpu_s = round(result.seconds, 3), round(result.cpu_s, 3)
    return {"nodeid": result.nodeid, "outcome": result.outcome, "seconds": seconds, "cpu_s": cpu_s}


def _append_unsteady(file: Path, unsteady: Iterable[Result], *, commit: str) -> set[str]:
    known = {json.loads(line)["nodeid"] for line in file.read_text().splitlines()} if file.is_file() else set()
    rows = list(unsteady)
    if rows:
        with file.open("a", encoding="utf-8") as out:
            out.writelines(json.dumps({"commit": commit, **asdict(row)}) + "\n" for row in rows)
    return known & {row.nodeid for row in rows}


def print_report(run: Run, verdict: Verdict, *, minutes: float, repeated: set[str]) -> None:
    tests = verdict.tests
    print("\n" + results.time_table(tests))
    print("\nThe slowest:")
    for result in results.slowest(tests):
        print(f"  {result.seconds:6.1f} s  {result.nodeid}")
    for result in verdict.slow:
        print(f"slow alone, {result.seconds:.1f} s: {result.nodeid}")
    skipped = results.skips(tests)
    for reason, count in skipped.most_common():
        print(f"skipped {count}: {reason}")
    for result in verdict.unsteady:
        again = ", not for the first time" if result.nodeid in repeated else ""
        print(f"unsteady{again} (load {result.load:.1f}): {result.nodeid}\n{_last_lines(result.reason)}")
    reasons = {result.nodeid: result.reason for result in tests} | verdict.reasons
    for name in verdict.red:
        print(f"RED {name}\n{_last_lines(reasons.get(name, ''))}".rstrip())
    for line in [*common_errors(verdict.red, reasons), *red_files(verdict.red)]:
        print(line)
    cpu = os.times()
    print(
        f"{'red' if verdict.red else 'green'}: {_count_passed(verdict)} passed, {len(verdict.red)} red, "
        f"{len(verdict.unsteady)} unsteady, {skipped.total()} skipped; {minutes:.1f} minutes, "
        f"{cpu.children_user + cpu.children_system:.0f} CPU-seconds, SCALE {run.scale:.1f}, "
        f"load {os.getloadavg()[0]:.1f}",
        flush=True,
    )


def common_errors(red: Sequence[str], reasons: Mapping[str, str]) -> list[str]:
    """The most frequent last lines of the reasons: one broken module fails many files. Empty for few red tests."""
    if len(red) <= NUM_NAMED:
        return []
    lines = [reasons.get(name, "").strip().splitlines() for name in red]
    errors = Counter(each[-1].removeprefix("E").strip()[:LONGEST_ERROR] for each in lines if each)
    return [f"red {count} times: {error}" for error, count in errors.most_common(NUM_ERRORS)]


def red_files(red: Sequence[str]) -> list[str]:
    """Red tests counted by file. Empty for few red tests, which are listed by name above."""
    if len(red) <= NUM_NAMED:
        return []
    files = Counter(name.partition("::")[0] for name in red)
    rows = [f"red {count}: {file}" for file, count in files.most_common(NUM_RED_FILES)]
    return [*rows, f"and {len(files) - NUM_RED_FILES} files more"] if len(files) > NUM_RED_FILES else rows


def _count_passed(verdict: Verdict) -> int:
    return sum(result.outcome == "passed" for result in verdict.tests)


def _last_lines(reason: str) -> str:
    return "\n".join(f"      {line}" for line in reason.splitlines()[-NUM_LINES:])


def _git(*words: str) -> str:
    """Empty outside of a git checkout."""
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
