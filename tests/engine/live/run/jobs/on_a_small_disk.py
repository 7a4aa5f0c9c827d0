"""Runs a job with one folder on a small disk that fills. test_small_disks starts it in a mount name space of its own.

    python -m tests.engine.live.run.jobs.on_a_small_disk SMALL_FOLDER OUT

Prints the run's ledger and steps as JSON in the last line.
"""

import json
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from infra.suite.speed import scale
from tests.waiting import eventually

STEPS: Final = 30
FULL_FROM_STEP: Final = 4
FULL_FOR_S: Final = 12.0
SIZE: Final = "400m"
ENDS_WITHIN_S: Final = 600.0
SPEC: Final = {
    "name": "small disks",
    "training": {"steps": STEPS, "prompts_per_step": 4, "checkpoint_every": 3},
    "algorithm": {"group_size": 4},
    "rollout": {"replicas": 2, "max_batch": 16, "max_new_tokens": 40},
    "evaluation": {"prompts": 8},
}


def main() -> None:
    small, out = Path(sys.argv[1]), Path(sys.argv[2])
    small.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE},mode=1777", "tmpfs", str(small)], check=True)
    spec = out.with_suffix(".json")
    spec.write_text(json.dumps(SPEC))
    run = subprocess.Popen([sys.executable, "-m", "engine", "run", str(spec), "--out", str(out)], stdout=sys.stderr)
    try:
        eventually(
            lambda: reached(out),
            f"step {FULL_FROM_STEP} is trained",
            until=lambda step: step >= FULL_FROM_STEP,
            within_s=ENDS_WITHIN_S,
            every_s=0.1,
            process=run,
        )
        fill(small / "filler")
        time.sleep(FULL_FOR_S)
        (small / "filler").unlink()
        assert run.wait(ENDS_WITHIN_S * scale()) == 0, "the run did not succeed"
    finally:
        run.terminate()
    print(json.dumps({"ledger": facts(out)[-1]["body"]["ledger"], "steps": reached(out)}))


def facts(out: Path) -> list[dict[str, Any]]:
    parsed: list[dict[str, Any]] = []
    with suppress(FileNotFoundError), (out / "facts.jsonl").open() as lines:
        for line in lines:
            with suppress(json.JSONDecodeError):  # half a line: the writer waits for room, or is writing it
                parsed.append(json.loads(line))
    return parsed


def reached(out: Path) -> int:
    return max((fact["body"]["step"] for fact in facts(out) if fact["body"]["type"] == "step_trained"), default=0)


def fill(filler: Path) -> None:
    with suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 20))


if __name__ == "__main__":
    main()
