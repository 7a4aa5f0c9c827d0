"""A figure that the formulas miss, taken apart: the rollouts of DORA's synchronous step (arXiv 2604.26256).

Published: 64 H800, 32B, 512 × 16 answers of 2.4K tokens in the mean and 30K at most; 65 % of a step is rollout alone.
Here the answers are drawn and dealt to the replicas, and each replica's batch is decoded by the same formulas as in any
run; then once more with each constant at the ends of its sweep, and with other values of what the paper leaves open
(tensor parallelism, sequences at once). Nothing is fitted: the question is whether any of them could be the cause.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from engine.pipeline.records import GroupKey, SampleKey
from engine.policy.lineage import WeightsId
from engine.sim.costs.calibration import DORA_STEP_S
from engine.sim.costs.constants import AS_THEY_STAND, SWEEP, Book, Constant
from engine.sim.costs.decode import ALL_REDUCE, GEMM_SHARE, READ_SHARE, STEP_OVERHEAD, DecodeCost
from engine.sim.costs.devices import DEVICES
from engine.sim.costs.lengths import MEDIAN, SIGMA, Lengths
from engine.sim.costs.memory import RESERVE, room_for_kv
from engine.sim.costs.models import MODELS
from engine.sim.costs.prefill import PREFILL_SHARE, prefill_token_s
from engine.sim.costs.slots import Slots
from engine.sim.fleet.decoding import Decoding
from engine.sim.fleet.sequence import Sequence

PUBLISHED_S: Final = 0.65 * DORA_STEP_S
DEVICES_IN_ALL: Final = 64
LONGEST: Final = 30 * 1_024
GROUPS: Final = 512
GROUP_SIZE: Final = 16
USUAL_TP: Final = 4
USUAL_BATCH: Final = 256
_ANY: Final = WeightsId(0, 1)
SWEPT: Final = (READ_SHARE, GEMM_SHARE, STEP_OVERHEAD, ALL_REDUCE, PREFILL_SHARE, RESERVE, MEDIAN, SIGMA)
# A sigma twice as large is another distribution; the ends are a 99th percentile of 6 and of 16 medians.
OWN_ENDS: Final = {SIGMA.name: (0.78, 1.2), RESERVE.name: (0.5, 2.0), READ_SHARE.name: (0.5, 1.25)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollouts:
    what: str
    seconds: float
    """Until the last answer of all replicas has ended."""
    half_s: float
    """Until half of the tokens were written."""
    last_step_s: float
    """A step of the answer that ends last, once it is alone."""

    @property
    def of_published(self) -> float:
        return self.seconds / PUBLISHED_S


def rollouts(what: str, *, book: Book = AS_THEY_STAND, tp: int = USUAL_TP, max_batch: int = USUAL_BATCH) -> Rollouts:
    device, model = DEVICES["H800"], MODELS["32B"]
    lengths, cost = Lengths.of(book, longest=LONGEST), DecodeCost.of(device, model, tp=tp, book=book)
    room = room_for_kv(device, model, tp=tp, slots=Slots(), at_least_tokens=LONGEST, book=book)
    ends: list[tuple[float, int]] = []
    replicas = DEVICES_IN_ALL // tp
    for replica in range(replicas):
        decoding = Decoding(
            cost,
            prefill_s=prefill_token_s(device, model, tp=tp, book=book),
            kv_tokens=room.kv_tokens,
            max_batch=max_batch,
        )
        decoding.add((each for group in range(replica, GROUPS, replicas) for each in _answers(group, lengths)), 0.0)
        ends += _ends(decoding)
    ends.sort()
    whole, written, half_s = sum(tokens for _, tokens in ends), 0, 0.0
    for at, tokens in ends:
        written += tokens
        if 2 * written >= whole:
            half_s = at
            break
    last_step_s = cost.step_s(1, LONGEST)
    return Rollouts(what=what, seconds=ends[-1][0], half_s=half_s, last_step_s=last_step_s)


def variants() -> Iterator[Rollouts]:
    yield rollouts("as they stand")
    for constant in SWEPT:
        for factor in _ends_of(constant):
            yield rollouts(f"{constant.name} x {factor:g}", book=AS_THEY_STAND.with_factor(constant, factor))
    yield rollouts("8 devices a replica", tp=8)
    yield rollouts("2 devices a replica", tp=2)
    for batch in (64, 1_024):
        yield rollouts(f"{batch} sequences at once", max_batch=batch)


def needed_step_s() -> float:
    """The mean time of a token if the longest answer begins at once and lasts as long as published."""
    return PUBLISHED_S / LONGEST


def _ends_of(constant: Constant) -> tuple[float, float]:
    return OWN_ENDS.get(constant.name, constant.sweep if constant.origin == "assumed" else SWEEP)


def _answers(group: int, lengths: Lengths) -> Iterator[Sequence]:
    for sample in range(GROUP_SIZE):
        key = SampleKey(group=GroupKey(ordinal=group), sample=sample)
        yield Sequence(
            key=key,
            lease=1,
            weights=_ANY,
            prompt=lengths.prompt,
            left=[lengths.response(1, key)],
            calls=deque(),
            context=lengths.prompt,
            is_cached=sample > 0,  # the prompt is prefilled once for all samples
        )


def _ends(decoding: Decoding) -> list[tuple[float, int]]:
    ends = []
    while (at := decoding.next_at()) is not None:
        decoding.arrive()
        ends += [(at, sequence.num_written) for sequence in decoding.ended()]
        decoding.admit(at)
    return ends
