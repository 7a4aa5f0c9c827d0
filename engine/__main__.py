"""`python -m engine run SPEC.json --out DIR`: one job on this machine, with its own Ray and no control plane.

Facts go to DIR/facts.jsonl, checkpoints to DIR/checkpoints, progress to the terminal.
"""

import argparse
import logging
import sys
from pathlib import Path

from pydantic import ValidationError

from engine.commands.bench import bench
from engine.commands.fit import fit, shape_if_known
from engine.commands.replay_step import replay_step
from engine.commands.simulate import simulate
from engine.live.body.replaying import replay
from engine.live.process.interruptions import obey_signals
from engine.live.process.ray_session import disconnect, start_own
from engine.live.run.attempt import Attempt, AttemptPlan
from engine.presets.by_model import apply_presets
from engine.sinks.jsonl import JsonlSink
from engine.spec.facts import (
    CheckpointSaved,
    Evaluated,
    Fact,
    FaultDetected,
    PhaseChanged,
    PipelineReady,
    PromptsAnswered,
    RunFinished,
    StepTrained,
)
from engine.spec.job import JobSpec
from engine.spec.logs.log_text import log_to
from engine.spec.settings.invalid_fields import error_lines


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m engine", description="Run, simulate and check jobs.")
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="run one job")
    run.add_argument("spec", type=Path, help="a JobSpec as JSON")
    run.add_argument("--out", type=Path, required=True, help="a folder for facts and checkpoints")
    run.add_argument("--resume-from", default=None, help="resume from this checkpoint")
    run.add_argument("--record", action="store_true", help="record messages and decisions for replay")
    run.add_argument("--record-step", type=int, default=None, metavar="N", help="record step N for replay-step")
    again = commands.add_parser("replay", help="repeat the decisions of a recorded part")
    again.add_argument("log", type=Path, help="a file in DIR/recordings")
    again.add_argument("--show", action="store_true", help="print every decision")
    commands.add_parser("replay-step", help="repeat a recorded training step and compare every bit", add_help=False)
    commands.add_parser("bench", help="measure this machine", add_help=False)
    commands.add_parser("simulate", help="simulate runs on other devices", add_help=False)
    commands.add_parser("fit", help="check whether a job fits its devices", add_help=False)
    if sys.argv[1:2] == ["bench"]:
        return bench(sys.argv[2:])
    if sys.argv[1:2] == ["fit"]:
        return fit(sys.argv[2:])
    if sys.argv[1:2] == ["simulate"]:
        return simulate(sys.argv[2:])
    if sys.argv[1:2] == ["replay-step"]:
        return replay_step(sys.argv[2:])
    arguments = parser.parse_args()
    if arguments.command == "replay":
        return replay_log(arguments.log, show=arguments.show)
    try:
        spec = JobSpec.model_validate_json(arguments.spec.read_bytes())
    except OSError as error:
        print(f"{arguments.spec}: {error.strerror}", file=sys.stderr)
        return 2
    except ValidationError as error:
        print(f"{arguments.spec} is not a valid job spec:", file=sys.stderr)
        for line in error_lines(error, whole="spec"):
            print(f"  {line}", file=sys.stderr)
        return 2
    step = arguments.record_step
    if step is not None and not 1 <= step <= spec.training.steps:
        print(f"--record-step must be a step of the job, 1 to {spec.training.steps}, got {step}", file=sys.stderr)
        return 2
    spec = apply_presets(spec, shape_if_known(spec.model.source))
    return run_here(spec, arguments.out, arguments.resume_from, record=arguments.record, record_step=step)


def run_here(
    spec: JobSpec, out: Path, resume_from: str | None, *, record: bool = False, record_step: int | None = None
) -> int:
    log_to(level=logging.WARNING, fmt="%(levelname)s %(message)s")
    facts = out / "facts.jsonl"
    if facts.exists():
        print(f"{out} already holds a run; choose another folder", file=sys.stderr)
        return 2
    obey_signals()
    recordings = (out / "recordings").resolve()
    sink = JsonlSink(facts, on_fact=_show)
    plan = AttemptPlan(
        spec=spec,
        checkpoints=(out / "checkpoints").resolve(),
        resume_from=resume_from,
        recordings=recordings if record else None,
        recorded_step=None if record_step is None else (record_step, recordings / f"step-{record_step:06d}"),
    )
    try:
        finished = Attempt(plan, sink).run(start_own)
    finally:
        disconnect()
        sink.close(timeout_s=0)
    return 0 if finished.outcome == "succeeded" else 1


def replay_log(log: Path, *, show: bool) -> int:
    num_decisions, first_other = 0, None
    try:
        part, decisions = replay(log)
        for decision in decisions:
            num_decisions += 1
            if not decision.is_the_same and first_other is None:
                first_other = decision
            if show:
                effects = ", ".join(type(effect).__name__ for effect in decision.effects) or "nothing"
                print(f"{decision.received.now:12.3f}  {type(decision.received.message).__name__:20} {effects}")
    except (OSError, ValueError, KeyError, StopIteration) as error:
        print(f"{log} is not a recording of a part: {error}", file=sys.stderr)
        return 2
    if first_other is not None:
        kind = type(first_other.received.message).__name__
        print(f"{part} decides differently from message {first_other.number} ({kind}) on: the code has changed")
        return 1
    print(f"{part}: {num_decisions} decisions, all identical")
    return 0


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
        case PromptsAnswered(num_answered=num_answered, num_prompts=num_prompts):
            return f"{num_answered} of {num_prompts} held-out prompts answered"
        case Evaluated() as result:
            return _evaluated(result)
        case CheckpointSaved(step=step, uri=uri):
            return f"checkpoint of step {step}: {uri}"
        case FaultDetected(component=component, message=message, action=action):
            return f"fault in {component}: {message}; {action}"
        case RunFinished(outcome=outcome, message=message, ledger=ledger):
            return f"{outcome}{': ' + message if message else ''}  {ledger}"
        case _:
            return ""


def _evaluated(result: Evaluated) -> str:
    line = f"held-out reward of version {result.version}: {result.reward_mean:.3f} ± {result.reward_error:.3f}"
    if result.pass_rate is not None:
        line += f", pass@{result.num_samples} {result.pass_rate:.3f} ± {result.pass_error:.3f}"
    return f"{line}, on {result.num_prompts} prompts"


if __name__ == "__main__":
    sys.exit(main())
