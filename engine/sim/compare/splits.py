"""The split of the devices between training and rollouts: a closed form of the step, whose best few are simulated.

    trains    the batch, by the cost model
    writes    the batch's tokens at the rate of replicas that are as full as their memory, their places and the open
              groups allow; where all wait for the last answer, the longest of them alone on top
    step      sync: both, one after the other; the others: the slower of the two

The closed form only ranks splits: the costs that it leaves out (stalls, installs, repacks) are alike in neighbours. Of
splits with equal steps (all wait for the longest answer) the one with the smallest sum of its two parts comes first.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import exp, log, sqrt

from engine.sim.costs.environment import FEWEST_CALLS, MOST_CALLS
from engine.sim.costs.lengths import Lengths
from engine.sim.costs.training import fewest_devices
from engine.sim.fleet.setup import Setup


@dataclass(frozen=True, slots=True)
class Moments:
    """Moments of the clipped response lengths."""

    mean: float
    by_size: float
    """The mean length of the answer that a random token belongs to."""


def moments(lengths: Lengths) -> Moments:
    if lengths.sigma == 0:
        return Moments(lengths.median, lengths.median)
    first = second = 0.0
    for at in range(400):  # the middles of slices of the normal distribution within four deviations
        z = (at + 0.5) / 50 - 4
        weight = exp(-z * z / 2) / sqrt(2 * 3.141592653589793) / 50
        length = min(lengths.longest, exp(log(lengths.median) + lengths.sigma * z))
        first, second = first + weight * length, second + weight * length * length
    return Moments(first, second / first)


def splits(setup: Setup, *, num: int) -> list[Setup]:
    """The best ones first. Colocated devices are not split."""
    if setup.is_colocated:
        return [setup]
    candidates = [each for each in _candidates(setup) if not each.why_not]
    return sorted(candidates, key=lambda each: (step_s(each), sum(_parts_s(each))))[:num]


def _candidates(setup: Setup) -> Iterator[Setup]:
    total = setup.num_devices
    needed = fewest_devices(setup.device, setup.model, lora_rank=setup.lora_rank, book=setup.book)
    grain = setup.tp if total <= 4 * setup.device.per_host else setup.device.per_host
    for train in range(grain, total, grain):
        if train >= needed and (total - train) % setup.tp == 0:
            yield replace(setup, train_devices=train, rollout_devices=total - train)


def step_s(setup: Setup) -> float:
    trains_s, writes_s = _parts_s(setup)
    if setup.schedule.window_steps:
        writes_s = max(writes_s, longest_s(setup) / setup.schedule.window_steps)
    return writes_s + trains_s if setup.schedule.lead_steps == 0 else max(writes_s, trains_s)


def _parts_s(setup: Setup) -> tuple[float, float]:
    """The seconds of training, and of writing at the rate of replicas that are as full as possible."""
    samples = setup.groups_per_step * setup.group_size
    of_lengths = moments(setup.lengths)
    calls = _calls(setup)
    answers = 0.0 if setup.tools is None else calls * setup.tools.tokens
    trains_s = setup.training_s(samples * (of_lengths.mean + setup.lengths.prompt + answers)) + setup.stall_s
    context = setup.lengths.prompt + answers / 2 + of_lengths.by_size / 2
    schedule = setup.schedule
    open_samples = samples * (schedule.window_steps if schedule.window_steps else 1 + schedule.lead_steps)
    places = min(setup.max_batch, setup.usual_kv_tokens / context, open_samples / setup.num_replicas)
    busy = max(1, round(places))
    rows = [(age, busy / setup.slots.num) for age in range(setup.slots.num)]
    step = setup.decode.step_s(busy, busy * context, load=setup.slot_cost.load(rows))
    alive_s = of_lengths.mean * step + _waits_s(setup)
    return trains_s, samples * alive_s / (places * setup.num_replicas)


def longest_s(setup: Setup) -> float:
    """The seconds of the longest answer, decoded alone."""
    return setup.lengths.longest * setup.decode.step_s(1, setup.lengths.longest / 2) + _waits_s(setup)


def _waits_s(setup: Setup) -> float:
    return 0.0 if setup.tools is None else _calls(setup) * setup.tools.mean_s


def _calls(setup: Setup) -> float:
    return 0.0 if setup.tools is None else (FEWEST_CALLS + MOST_CALLS) / 2
