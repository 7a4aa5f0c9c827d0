"""`python -m infra.suite gate` or `long`: the tests in as many processes as there are cores, and a verdict.

    measure SCALE → throw-away site → pytest under xdist → failed tests again, alone → slow tests again, alone
                                                         → report, `.laminar/tested.json`, exit code

Further words go to pytest: `python -m infra.suite long tests/engine/live`.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from infra.local.testing import throw_away_site
from infra.suite.plugin import LONG
from infra.suite.report import print_report, write_record
from infra.suite.speed import VARIABLE, measure_scale
from infra.suite.verdict import CHOICE, Run, judge


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m infra.suite", description="run the tests and give a verdict")
    parser.add_argument("suite", choices=sorted(CHOICE))
    options, words = parser.parse_known_args(list(arguments))
    started_at, load = time.monotonic(), os.getloadavg()[0]
    scale = measure_scale()
    print(f"SCALE {scale:.1f}, {os.cpu_count()} cores, load {load:.1f}", flush=True)
    with tempfile.TemporaryDirectory(prefix="laminar-suite-") as folder, throw_away_site() as site:
        environment = {**site, VARIABLE: str(scale)} | ({LONG: "1"} if options.suite == "long" else {})
        databases = [sys.executable, "-m", "infra.suite.databases", str(os.cpu_count() or 1)]
        if subprocess.run(databases, env=site, check=False).returncode:
            print("No test ran: the test databases could not be prepared. The error is above.", flush=True)
            return 1
        run = Run(
            suite=options.suite,
            words=words,
            scale=scale,
            folder=Path(folder),
            environment=environment,
            started_at=started_at,
        )
        verdict = judge(run)
    minutes = (time.monotonic() - started_at) / 60
    repeated = write_record(run, verdict, minutes=minutes)
    print_report(run, verdict, minutes=minutes, repeated=repeated)
    return 1 if verdict.red else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
