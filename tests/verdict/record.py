"""python -m tests.verdict.record NAME …: does these runs on the real engine and keeps their facts in recordings/.

Kept of each fact is what rules may see: its kind, its time, and the numbers of a step. A run is replayed with its
original times.
"""

import argparse
import gzip
import json
import logging
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from engine.live.process.ray_session import disconnect, start_own
from engine.live.run.attempt import Attempt, AttemptPlan
from engine.sinks.memory import MemorySink
from engine.spec.facts import Evaluated, FactBody, FaultDetected, PhaseChanged, PipelineReady, RunFinished, StepTrained
from engine.spec.job import JobSpec
from tests.verdict.replaying import FOLDER, place_of
from tests.verdict.runs import RUNS, Run

TRIES: Final = 5


class Timed(MemorySink):
    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[float, FactBody]] = []

    def record(self, body: FactBody) -> None:
        super().record(body)
        self.told.append((time.time(), body))
        if isinstance(body, StepTrained):
            print(f"  step {body.step} reward {body.metrics['reward/mean']:.3f}", file=sys.stderr)


def recorded(run: Run, folder: Path) -> dict[str, Any]:
    sink = Timed()
    spec = JobSpec.model_validate(run.spec())
    Attempt(AttemptPlan(spec=spec, checkpoints=folder / "checkpoints"), sink).run(lambda: None)
    began = sink.told[0][0]
    kept = [[round(at - began, 2), *_said(body)] for at, body in sink.told]
    return {"spec": spec.model_dump(mode="json"), "facts": [each for each in kept if len(each) > 1]}


def _said(body: FactBody) -> list[Any]:
    match body:
        case StepTrained():
            return ["step", body.step, {name: float(f"{value:.5g}") for name, value in sorted(body.metrics.items())}]
        case Evaluated():
            return ["evaluated", body.version, body.reward_mean]
        case FaultDetected():
            return ["fault", body.component, body.message[:300]]
        case PhaseChanged():
            return ["phase", body.phase]
        case PipelineReady():
            return ["ready"]
        case RunFinished():
            return ["finished", body.outcome, body.message[:300], body.ledger]
        case _:
            return []


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.verdict.record", description="Records runs.")
    parser.add_argument("names", nargs="*", help="all that are missing, if none is named")
    names = parser.parse_args().names
    logging.basicConfig(level=logging.WARNING)
    os.environ["PYTHONPATH"] = str(Path(__file__).resolve().parents[2])  # Ray's workers import the engine from here
    FOLDER.mkdir(exist_ok=True)
    wanted = [run for run in RUNS if run.name in names or not (names or place_of(run).exists())]
    _start_ray()
    try:
        for run in wanted:
            _record(run)
    finally:
        disconnect()


def _start_ray() -> None:
    """Ray gives itself half a minute, which a busy machine exceeds. Its workers yield to everything else there, until
    they are taken for lost: here they are as nice as we are."""
    os.environ.setdefault("RAY_worker_niceness", "0")
    for _ in range(TRIES):
        try:
            start_own()
            return
        except Exception as error:  # noqa: BLE001 - Ray raises no type of its own here
            print(f"Ray did not start: {error}", file=sys.stderr)
            disconnect()
    raise SystemExit("Ray does not start on this machine")


def _record(run: Run) -> None:
    print(run.name, file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        told = recorded(run, Path(folder))
    if not any(fact[1] == "step" for fact in told["facts"]):
        print(f"{run.name}: no step was trained, nothing is kept: {told['facts'][-1]}", file=sys.stderr)
        return
    text = json.dumps(told, separators=(",", ":"), sort_keys=True)
    place_of(run).write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    main()
