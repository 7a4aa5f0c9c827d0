"""A kept run on the simulator: the same plan and trace, constants fitted to another run; and figures of the same steps
of both.

Not simulated, and so likely causes of misses: parts that share the machine's cores, threads that delay each other, and
the time of checkpoints and evaluations.
"""

from dataclasses import dataclass, replace
from typing import Final

from engine.pipeline.plan import Plan
from engine.scorecard.kept import KeptRun
from engine.scorecard.recording import Trace
from engine.sim.costs.devices import DEVICES
from engine.sim.costs.lengths import Lengths
from engine.sim.costs.slots import Slots
from engine.sim.fleet.fleet import Fleet
from engine.sim.fleet.setup import Setup
from engine.sim.fleet.work import Drawing
from engine.sim.recorded.facts import read_facts
from engine.sim.recorded.fit import DeviceFit
from engine.spec.facts import Fact, StepTrained

DEVICE: Final = "CPU"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    trajectories_per_s: float
    staleness_mean: float
    trainer_waits: float
    """Of the time, the share in which nothing is trained and no weights are copied."""


def measured(run: KeptRun) -> Figures:
    """The figures from the end of the warm-up to the end of the last counted step."""
    steps = [(fact, fact.body) for fact in read_facts(run.facts) if isinstance(fact.body, StepTrained)]
    if len(steps) < run.spec.training.steps:
        raise ValueError(f"{run.folder}: {len(steps)} of {run.spec.training.steps} steps were trained")
    counted = steps[run.warm_up : run.warm_up + run.num_steps]
    metrics = [step.metrics for _, step in counted]
    seconds = _between(steps[run.warm_up - 1][0], counted[-1][0])
    return Figures(
        trajectories_per_s=run.num_steps * run.trajectories_per_step / seconds,
        staleness_mean=sum(each["staleness/mean"] for each in metrics) / len(metrics),
        trainer_waits=sum(each["trainer/wait_fraction"] * each["trainer/step_s"] for each in metrics)
        / sum(each["trainer/step_s"] for each in metrics),
    )


def simulated(run: KeptRun, trace: Trace, device_fit: DeviceFit) -> Figures:
    longest = max(each.num_tokens for each in trace.tokens.samples.values())
    outcome = Fleet(setup_of(run, trace, device_fit, longest=longest)).run()
    return Figures(
        trajectories_per_s=run.trajectories_per_step / outcome.step_s,
        staleness_mean=outcome.staleness_mean,
        trainer_waits=outcome.generation_share,
    )


def setup_of(run: KeptRun, drawn: Drawing, device_fit: DeviceFit, *, longest: int) -> Setup:
    """`longest`: tokens of a sample."""
    spec, plan = run.spec, Plan.from_spec(run.spec)
    device = replace(DEVICES[DEVICE], per_host=spec.rollout.replicas)  # one host
    updates = spec.training.mini_batches * spec.training.passes
    setup = Setup(
        device=device,
        model=device_fit.model,
        schedule=plan.schedule,
        train_devices=1,
        rollout_devices=spec.rollout.replicas,
        tp=1,
        slots=Slots(num=plan.weight_slots),
        lengths=Lengths(longest=longest),
        drawn=drawn,
        book=device_fit.book,
        seed=spec.training.seed,
        steps=run.num_steps,
        warm_steps=run.warm_up,
        groups_per_step=plan.groups_per_step,
        group_size=plan.group_size,
        mini_batch=max(1, run.trajectories_per_step // updates),
        max_batch=plan.max_batch,
    )
    if setup.why_not:
        raise ValueError(f"{run.folder}: {setup.why_not}")
    return setup


def _between(first: Fact, last: Fact) -> float:
    return (last.at - first.at).total_seconds()
