"""`python -m engine run SPEC.json --out DIR`: one job on this machine, with its own Ray and no control plane.

Facts go to DIR/facts.jsonl, checkpoints to DIR/checkpoints, progress to the terminal.
"""

import argparse
import logging
import sys
from pathlib import Path

from pydantic import ValidationError

from engine.live.attempt import Attempt, AttemptPlan
from engine.live.interruptions import obey_signals
from engine.live.ray_session import disconnect, start_own
from engine.sinks.jsonl import JsonlSink
from engine.spec.facts import (
    CheckpointSaved,
    Evaluated,
    Fact,
    FaultDetected,
    PhaseChanged,
    PipelineReady,
    RunFinished,
    StepTrained,
)
from engine.spec.job import JobSpec


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m engine", description="Trains on this machine.")
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="run one job")
    run.add_argument("spec", type=Path, help="a JobSpec as JSON")
    run.add_argument("--out", type=Path, required=True, help="a folder for facts and checkpoints")
    run.add_argument("--resume-from", default=None, help="go on from this checkpoint")
    arguments = parser.parse_args()
    try:
        spec = JobSpec.model_validate_json(arguments.spec.read_bytes())
    except OSError as error:
        print(f"{arguments.spec}: {error.strerror}", file=sys.stderr)
        return 2
    except ValidationError as error:
        print(f"{arguments.spec} is not a job spec:", file=sys.stderr)
        for problem in error.errors():
            print(f"  {'.'.join(map(str, problem['loc'])) or 'spec'}: {problem['msg']}", file=sys.stderr)
        return 2
    return run_here(spec, arguments.out, arguments.resume_from)


def run_here(spec: JobSpec, out: Path, resume_from: str | None) -> int:
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    facts = out / "facts.jsonl"
    if facts.exists():
        print(f"{out} holds a run already; choose another folder", file=sys.stderr)
        return 2
    obey_signals()
    sink = JsonlSink(facts, on_fact=_show)
    plan = AttemptPlan(spec=spec, checkpoints=(out / "checkpoints").resolve(), resume_from=resume_from)
    try:
        finished = Attempt(plan, sink).run(start_own)
    finally:
        disconnect()
        sink.close(timeout_s=0)
    return 0 if finished.outcome == "succeeded" else 1


def _show(fact: Fact) -> None:
    line = _line(fact)
    if line:
        print(f"{fact.at:%H:%M:%S}  {line}", flush=True)


def _line(fact: Fact) -> str:
    match fact.body:
        case PhaseChanged(phase=phase):
            return phase.replace("_", " ")
        case PipelineReady(num_replicas=num_replicas, num_parameters=num_parameters):
            return f"ready: {num_replicas} replicas, {num_parameters:,} parameters"
        case StepTrained(step=step, metrics=metrics):
            return (
                f"step {step:>5}  reward {metrics['reward/mean']:.3f}  length {metrics['length/mean']:.1f}  "
                f"staleness {metrics['staleness/mean']:.2f}  {metrics['throughput/tokens_per_s']:,.0f} tokens/s  "
                f"waited {metrics['trainer/wait_fraction']:.0%}"
            )
        case Evaluated(version=version, num_prompts=num_prompts, reward_mean=reward_mean):
            return f"held-out reward of version {version}: {reward_mean:.3f} on {num_prompts} prompts"
        case CheckpointSaved(step=step, uri=uri):
            return f"checkpoint of step {step}: {uri}"
        case FaultDetected(component=component, message=message, action=action):
            return f"fault in {component}: {message}; {action}"
        case RunFinished(outcome=outcome, message=message, ledger=ledger):
            return f"{outcome}{': ' + message if message else ''}  {ledger}"
        case _:
            return ""


if __name__ == "__main__":
    sys.exit(main())
