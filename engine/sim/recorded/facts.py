"""A live run's facts (DIR/facts.jsonl of `python -m engine run`), as the observations that constants are fitted to.

Invariants:
- an observation is a difference between two facts of the same incarnation: work before the first is not counted;
- a figure repeated in several facts, because nothing changed, is one observation.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from engine.spec.facts import Fact, PipelineReady, ReplicasObserved, ReplicaState, StepTrained, TrajectoriesSampled


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """A stretch of one replica's work."""

    seconds: float
    num_steps: int
    num_tokens: int
    num_prefilled: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A step: what its batch took, without waiting and hand-over."""

    seconds: float
    num_tokens: float
    """Read and written, as the trainer counts them."""
    num_updates: float


@dataclass(slots=True, kw_only=True)
class Observations:
    num_parameters: int = 0
    decoded: list[Decoded] = field(default_factory=list)
    trained: list[Trained] = field(default_factory=list)
    handovers_s: list[float] = field(default_factory=list)
    broadcasts_s: list[float] = field(default_factory=list)
    installs_s: list[float] = field(default_factory=list)
    """The mean time of an install in each stretch that has any."""
    grading_s: list[float] = field(default_factory=list)
    """The mean grading time of a trajectory in each step."""
    has_tools: bool = False
    """Environments ran tools as well as graders."""


def read_facts(path: Path) -> Iterator[Fact]:
    """Raises `ValueError` if the file holds no facts. A truncated last line is ignored."""
    with path.open("rb") as lines:  # streamed: weeks of facts are gigabytes
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                yield Fact.model_validate_json(line)
            except ValidationError as error:
                if not line.endswith(b"\n"):
                    return
                raise ValueError(f"{path}, line {number}: not a fact: {error.errors()[0]['msg']}") from error


def observed(facts: Iterable[Fact]) -> Observations:
    observations, replicas = Observations(), dict[tuple[int, int], ReplicaState]()
    for fact in facts:
        match fact.body:
            case PipelineReady():
                observations.num_parameters = fact.body.num_parameters
            case ReplicasObserved():
                for state in fact.body.replicas:
                    who = (state.replica, state.incarnation)
                    if who in replicas:
                        _add_stretch(observations, replicas[who], state)
                    replicas[who] = state
            case TrajectoriesSampled():
                observations.has_tools |= any(
                    turn.author == "environment" for each in fact.body.trajectories for turn in each.turns
                )
            case StepTrained():
                _add_step(observations, fact.body)
            case _:
                pass
    return observations


def _add_stretch(observations: Observations, before: ReplicaState, now: ReplicaState) -> None:
    stretch = Decoded(
        seconds=now.decode_s - before.decode_s,
        num_steps=now.num_steps - before.num_steps,
        num_tokens=now.num_decoded - before.num_decoded,
        num_prefilled=now.num_prefilled - before.num_prefilled,
    )
    if stretch.num_steps > 0:
        observations.decoded.append(stretch)
    installs = now.num_installs - before.num_installs
    if installs > 0:
        observations.installs_s.append((now.install_s - before.install_s) / installs)


def _add_step(observations: Observations, step: StepTrained) -> None:
    metrics = step.metrics
    if "environment/seconds_mean" in metrics:
        observations.grading_s.append(metrics["environment/seconds_mean"])
    handover_s = metrics.get("trainer/handover_s")
    is_new = handover_s is not None and handover_s not in observations.handovers_s[-1:]
    if handover_s is not None and is_new:
        observations.handovers_s.append(handover_s)
    broadcast_s = metrics.get("weights/broadcast_s")
    if broadcast_s is not None and broadcast_s not in observations.broadcasts_s[-1:]:
        observations.broadcasts_s.append(broadcast_s)
    if step.step > 1 and {"trainer/step_s", "trainer/wait_fraction", "train/tokens"} <= metrics.keys():
        # The first step's time counts from the start. A hand-over lies between two steps if there was one.
        busy_s = metrics["trainer/step_s"] * (1 - metrics["trainer/wait_fraction"])
        observations.trained.append(
            Trained(
                seconds=max(0.0, busy_s - (handover_s or 0.0) * is_new),
                num_tokens=metrics["train/tokens"],
                num_updates=metrics.get("train/updates", 1.0) + metrics.get("train/skipped", 0.0),
            )
        )
