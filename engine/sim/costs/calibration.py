"""Calibration: the published figures that constants were fitted to, the formulas' results, and the residuals.

They are from the Laminar paper (arXiv 2510.12633), DORA (arXiv 2604.26256) and verl's documentation of its fully
asynchronous trainer; other published figures are kept for validation. `fixes` names the constant that a figure fixes; a
figure that fixes none checks those that others fixed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import exp
from typing import Final

from engine.sim.costs.constants import Constant
from engine.sim.costs.decode import ALL_REDUCE, GEMM_SHARE, READ_SHARE, STEP_OVERHEAD, DecodeCost
from engine.sim.costs.devices import DEVICES
from engine.sim.costs.environment import ANSWER_TOKENS, CALL_S, SLOW_CALLS
from engine.sim.costs.grading import GRADING_S
from engine.sim.costs.handover import HANDOVER_RATE, handover_s
from engine.sim.costs.install import BUS_SHARE, INSTALL_FIXED
from engine.sim.costs.lengths import MEDIAN, PROMPT_TOKENS, SIGMA
from engine.sim.costs.memory import RESERVE, room_for_kv
from engine.sim.costs.messages import MESSAGE_S, PERSIST_S
from engine.sim.costs.models import MODELS
from engine.sim.costs.prefill import PREFILL_SHARE, prefill_token_s
from engine.sim.costs.relay import HOP_S, broadcast_s
from engine.sim.costs.repack import LINK_SHARE, MOVE_FIXED, move_s
from engine.sim.costs.slots import CHANGED_SHARE, SMALL_LAUNCH, SPARSE_SHARE, Slots
from engine.sim.costs.switch import RESHARD_SHARE
from engine.sim.costs.training import ACTIVATIONS, FORWARD_GAIN, HALF_TOKENS, MFU, training_cost

CONSTANTS: Final = (
    READ_SHARE,
    GEMM_SHARE,
    STEP_OVERHEAD,
    ALL_REDUCE,
    PREFILL_SHARE,
    MFU,
    HALF_TOKENS,
    FORWARD_GAIN,
    ACTIVATIONS,
    RESERVE,
    HANDOVER_RATE,
    HOP_S,
    BUS_SHARE,
    INSTALL_FIXED,
    LINK_SHARE,
    MOVE_FIXED,
    RESHARD_SHARE,
    SIGMA,
    MEDIAN,
    PROMPT_TOKENS,
    CALL_S,
    SLOW_CALLS,
    ANSWER_TOKENS,
    GRADING_S,
    MESSAGE_S,
    PERSIST_S,
    CHANGED_SHARE,
    SPARSE_SHARE,
    SMALL_LAUNCH,
)

_H800: Final = DEVICES["H800"]
TAIL_TOKENS: Final = 16_384
# DORA, 64 H800, 32B: 23,327 tokens/s are 1.65 × sync; of 512 × 16 responses of 2.4K, 35 % of the time is not rollout.
DORA_TOKENS: Final = 512 * 16 * 2_400
DORA_STEP_S: Final = DORA_TOKENS / (23_327 / 1.65)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    what: str
    published: float
    unit: str
    modelled: Callable[[], float]
    fixes: Constant | None = None
    """None: the figure checks constants that others fixed."""

    @property
    def off_by(self) -> float:
        return self.modelled() / self.published - 1


def _kv_tokens(model: str) -> float:
    spans = MODELS[model].tensor_parallel
    return float(room_for_kv(_H800, MODELS[model], tp=spans, slots=Slots(), at_least_tokens=0).kv_tokens)


def _tail_s(model: str) -> float:
    spans = MODELS[model].tensor_parallel
    return DecodeCost.of(_H800, MODELS[model], tp=spans).steps_s(TAIL_TOKENS, 1, 0)


def _prefill_s(model: str, tokens: float) -> float:
    return tokens * prefill_token_s(_H800, MODELS[model], tp=MODELS[model].tensor_parallel)


def _dora_s() -> float:
    return training_cost(_H800, MODELS["32B"], devices=64, tokens=DORA_TOKENS, updates=16).total_s


def _forward_share() -> float:
    cost = training_cost(DEVICES["H20"], MODELS["7B"], devices=32, tokens=DORA_TOKENS, updates=16)
    return cost.log_probs_s / cost.update_s


def _longest_to_median() -> float:
    return exp(2.326 * SIGMA.value)


TARGETS: Final = (
    Target(
        what="KV tokens, 7B",
        published=0.95e6,
        unit="tokens",
        modelled=lambda: _kv_tokens("7B"),
        fixes=RESERVE,
    ),
    Target(what="KV tokens, 32B TP4", published=0.82e6, unit="tokens", modelled=lambda: _kv_tokens("32B")),
    Target(what="KV tokens, 72B TP8", published=1.27e6, unit="tokens", modelled=lambda: _kv_tokens("72B")),
    Target(
        what="16K tokens alone, fastest",
        published=148,
        unit="s",
        modelled=lambda: _tail_s("7B"),
        fixes=STEP_OVERHEAD,
    ),
    Target(
        what="16K tokens alone, slowest",
        published=184,
        unit="s",
        modelled=lambda: _tail_s("72B"),
        fixes=ALL_REDUCE,
    ),
    Target(
        what="actor stall, 65.5 GB",
        published=0.64,
        unit="s",
        modelled=lambda: handover_s(MODELS["32B"]),
        fixes=HANDOVER_RATE,
    ),
    Target(what="actor stall, 145.4 GB", published=1.40, unit="s", modelled=lambda: handover_s(MODELS["72B"])),
    Target(
        what="145.4 GB to 127 relays",
        published=1.6,
        unit="s",
        modelled=lambda: broadcast_s(MODELS["72B"], relays=127),
        fixes=HOP_S,
    ),
    Target(
        what="a repack: 40 tails of 8K, 32B",
        published=0.69,
        unit="s",
        modelled=lambda: move_s(_H800, MODELS["32B"], tp=4, tokens=40 * 8_000),
        fixes=MOVE_FIXED,
    ),
    Target(
        what="their re-prefill instead",
        published=11,
        unit="s",
        modelled=lambda: _prefill_s("32B", 40 * 8_000),
    ),
    Target(what="re-prefill of all, 7B", published=29, unit="s", modelled=lambda: _prefill_s("7B", 0.95e6)),
    Target(what="re-prefill of all, 32B", published=27, unit="s", modelled=lambda: _prefill_s("32B", 0.82e6)),
    Target(what="re-prefill of all, 72B", published=47, unit="s", modelled=lambda: _prefill_s("72B", 1.27e6)),
    Target(
        what="DORA: a sync step but its rollout",
        published=0.35 * DORA_STEP_S,
        unit="s",
        modelled=_dora_s,
        fixes=HALF_TOKENS,
    ),
    Target(
        what="verl: log-probs of an update's time",
        published=107.7 / 269.8,
        unit="",
        modelled=_forward_share,
        fixes=FORWARD_GAIN,
    ),
    Target(what="p99 of the median", published=10, unit="", modelled=_longest_to_median, fixes=SIGMA),
    Target(
        what="DORA: mean response",
        published=2_400,
        unit="tokens",
        modelled=lambda: MEDIAN.value * exp(SIGMA.value**2 / 2),
        fixes=MEDIAN,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    constant: Constant
    num_targets: int
    """That the formula with this constant must meet."""

    @property
    def degrees_left(self) -> int:
        return self.num_targets - 1


# The targets of each fitted constant, with those that only check it.
FITS: Final = (
    Fit(constant=RESERVE, num_targets=3),
    Fit(constant=STEP_OVERHEAD, num_targets=1),
    Fit(constant=ALL_REDUCE, num_targets=1),
    Fit(constant=HANDOVER_RATE, num_targets=2),
    Fit(constant=HOP_S, num_targets=1),
    Fit(constant=MOVE_FIXED, num_targets=1),
    Fit(constant=HALF_TOKENS, num_targets=1),
    Fit(constant=FORWARD_GAIN, num_targets=1),
    Fit(constant=SIGMA, num_targets=1),
    Fit(constant=MEDIAN, num_targets=1),
)
