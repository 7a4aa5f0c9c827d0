"""The work of two replicas for the same batches under each schedule, counted at a true model's width; its time here, by
this processor's own constants, and by the simulator.

The replicas are real engines on weights as wide as a public model's (bfloat16, few layers), with forced log-normal
lengths and no waits. Brains, data, trainer and relays are the fleet's (engine/sim/fleet): the virtual clock advances by
the seconds that the engines took, so that two replicas can share one core without effect. Versions follow each other at
a fixed interval: a share of the time that two full replicas need for a batch.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import Final

import torch

from engine.fit.known_models import KNOWN_CONFIGS
from engine.pipeline.records import GroupKey, SampleKey
from engine.policy.lineage import WeightsId
from engine.scorecard.tables import Row, Value, rounded
from engine.sim.compare.contestants import CONTESTANTS
from engine.sim.costs.constants import Book
from engine.sim.costs.devices import DEVICES, Device
from engine.sim.costs.lengths import SIGMA, Lengths
from engine.sim.costs.memory import RESERVE
from engine.sim.costs.training import fewest_devices
from engine.sim.fleet.fleet import Fleet
from engine.sim.fleet.setup import Setup
from engine.sim.recorded.fit import fit
from tests.bench.engine.deciding.engine import together
from tests.bench.engine.deciding.engine_body import EngineBody
from tests.bench.engine.deciding.machine import Machine, machine_of
from tests.bench.engine.deciding.own_constants import OwnConstants, measure_own
from tests.bench.engine.report import Report

REPLICAS: Final = 2
SCHEDULES: Final = tuple(
    name for name, each in CONTESTANTS.items() if not each.is_colocated and each.slots.kept == "whole"
)
"""The schedules that the engine of live replicas supports."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--schedules", nargs="+", default=list(SCHEDULES), choices=SCHEDULES)
    parser.add_argument("--shape", default="Qwen3-8B", choices=list(KNOWN_CONFIGS))
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--median", type=int, default=24, help="tokens of an answer")
    parser.add_argument("--longest", type=int, default=192, help="tokens of an answer")
    parser.add_argument("--prompt", type=int, default=32, help="tokens")
    parser.add_argument("--rows", type=int, default=16, help="answers that a replica writes at once")
    parser.add_argument("--prompts", type=int, default=8, help="prompts a step; each has a group of 4")
    parser.add_argument("--training", type=float, default=0.5, help="of the time in which a batch is written")
    parser.add_argument("--warm-up", type=int, default=2, help="steps before those that count")
    parser.add_argument("--steps", type=int, default=6)


def measure(arguments: argparse.Namespace) -> Report:
    torch.set_num_threads(1)
    longest = arguments.prompt + arguments.longest
    config = KNOWN_CONFIGS[arguments.shape]
    with machine_of(config, layers=arguments.layers, longest=longest, max_batch=arguments.rows) as machine:
        own = measure_own(machine, longest=arguments.longest)
        base = _base(machine, own, arguments)
        rows = [_row(name, _of(name, base, machine), machine, own) for name in arguments.schedules]
    batch = base.groups_per_step * base.group_size
    return Report(
        bench="deciding",
        rows=rows,
        remarks=[
            f"{arguments.layers} layers of {arguments.shape}: {machine.model.weight_bytes / 1e6:,.0f} MB of weights, "
            f"{machine.model.kv_bytes:,.0f} bytes a token; {REPLICAS} replicas of {arguments.rows} rows, "
            f"{batch} answers a step, of median {arguments.median} and at most {arguments.longest} tokens; "
            "one thread, its own seconds",
            "own constants: " + ", ".join(_describe(own)),
            f"a version every {base.train_every_s:.2f} s",
        ],
    )


GROUP: Final = 4


def _base(machine: Machine, own: OwnConstants, arguments: argparse.Namespace) -> Setup:
    """The set-up before its schedule is filled in."""
    lengths = Lengths(median=arguments.median, sigma=SIGMA.value, prompt=arguments.prompt, longest=arguments.longest)
    device_fit, samples = fit(own.observations, DEVICES["CPU"]), arguments.prompts * GROUP
    setup = Setup(
        device=_device(machine, versions=1, book=device_fit.book),
        model=machine.model,
        schedule=CONTESTANTS["sync_split"].schedule,
        train_devices=1,
        rollout_devices=REPLICAS,
        tp=1,
        lengths=lengths,
        book=device_fit.book,
        steps=arguments.steps,
        warm_steps=arguments.warm_up,
        groups_per_step=arguments.prompts,
        group_size=GROUP,
        mini_batch=samples,
        max_batch=arguments.rows,
    )
    num_written = fmean(_written(setup, ordinal) for ordinal in range(MANY)) * arguments.prompts
    full_s = num_written / (REPLICAS * arguments.rows) * own.step_s[-1]
    return replace(setup, train_every_s=max(arguments.training * full_s, setup.stall_s))


MANY: Final = 1_000
"""The number of groups of a mean."""


def _written(setup: Setup, ordinal: int) -> int:
    group = GroupKey(ordinal=ordinal)
    return sum(setup.work(SampleKey(group=group, sample=sample)).num_written for sample in range(GROUP))


def _device(machine: Machine, *, versions: int, book: Book) -> Device:
    """This machine's device, with the actual memory of the engines."""
    needed = versions * machine.model.weight_bytes + machine.kv_tokens * machine.model.kv_bytes
    return replace(DEVICES["CPU"], per_host=REPLICAS, memory_bytes=1.0001 * needed / (1 - book(RESERVE)))


def _of(name: str, base: Setup, machine: Machine) -> Setup:
    contestant = CONTESTANTS[name]
    device = _device(machine, versions=contestant.slots.num, book=base.book)
    return replace(
        base,
        schedule=contestant.schedule,
        slots=contestant.slots,
        device=device,
        train_devices=fewest_devices(device, base.model, book=base.book),
    )


def _row(name: str, setup: Setup, machine: Machine, own: OwnConstants) -> Row:
    fleet = Fleet(setup, make_body=partial(EngineBody, machine=machine))
    real, simulated = fleet.run(), Fleet(setup).run()
    bodies: list[EngineBody] = [replica.body for replica in fleet.replicas]
    counted = together([engine.counted for body in bodies for engine in body.engines])
    took_s = sum(body.busy_s + body.held_up_s for body in bodies)
    terms = own.terms(counted)
    model, durations = machine.model, [seconds for body in bodies for seconds in body.durations_s]
    return {
        "schedule": name,
        "steps": len(counted.steps),
        "rows": rounded(counted.num_decoded / len(counted.steps)),
        "weights_gb": rounded(len(counted.steps) * model.weight_bytes / 1e9),
        "kv_gb": rounded(counted.context * model.kv_bytes / 1e9),
        "prefilled": counted.num_prefilled,
        "installs": counted.installs,
        "installs_gb": rounded(counted.installs * model.weight_bytes / 1e9),
        "moved": counted.moved,
        "first_token_s": rounded(_first_token_s(fleet.published_at, bodies)),
        "duration_s": rounded(fmean(durations)),
        "seconds": rounded(took_s),
        "priced": rounded(sum(terms.values())),
        "priced_over": rounded(sum(terms.values()) / took_s),
        **{f"{term}_s": rounded(seconds) for term, seconds in terms.items()},
        **_compare("tokens_per_s", real.tokens_per_s, simulated.tokens_per_s),
        **_compare("staleness", real.staleness_mean, simulated.staleness_mean),
    }


def _compare(name: str, real: float, simulated: float) -> dict[str, Value]:
    ratio = rounded(simulated / real) if real else None
    return {name: rounded(real), f"{name}_simulated": rounded(simulated), f"{name}_over": ratio}


def _first_token_s(published_at: Mapping[WeightsId, float], bodies: Sequence[EngineBody]) -> float:
    """The mean time from a version's arrival at the relays to its first token, over replicas and versions."""
    lags = [
        said_at - published_at[weights]
        for body in bodies
        for weights, said_at in body.first_announced_at.items()
        if weights in published_at
    ]
    return fmean(lags) if lags else 0.0


def _describe(own: OwnConstants) -> Iterator[str]:
    for rows, seconds in zip(own.rows, own.step_s, strict=True):
        yield f"a step of {rows} rows {1e3 * seconds:.1f} ms"
    yield f"a token of context {1e6 * own.context_token_s:.2f} us"
    yield f"a prefill {1e3 * own.pass_s:.1f} ms and {1e3 * own.prefill_token_s:.2f} ms a token"
    yield f"an install {1e3 * own.install_s:.0f} ms"
    yield f"a move {1e6 * own.move_token_s:.1f} us a token"
