"""The constants of a device, fitted to the facts of a live run on it.

    decode       seconds = overhead · steps + row · tokens + prefill · tokens read     a stretch of a replica
    training     seconds = a · tokens + b · updates                                    a step
    the others   the mean of the observations

Each is then put into the formula of its cost (engine/sim/costs), which gives the constant. Invariants:
- a constant that the run does not determine keeps its value, with the reason;
- if a formula has two constants for one figure of a run, the given one stays and the other is fitted.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any, Final

from engine.sim.costs.constants import AS_THEY_STAND, Book, Constant
from engine.sim.costs.decode import GEMM_SHARE, READ_SHARE, STEP_OVERHEAD, DecodeCost
from engine.sim.costs.devices import Device
from engine.sim.costs.grading import GRADING_S
from engine.sim.costs.handover import HANDOVER_RATE, handover_s
from engine.sim.costs.install import INSTALL_FIXED, install_s
from engine.sim.costs.models import BYTES_PER_WEIGHT, Model
from engine.sim.costs.prefill import PREFILL_SHARE
from engine.sim.costs.relay import HOP_S, broadcast_s
from engine.sim.costs.training import FORWARD_GAIN, HALF_TOKENS, MFU
from engine.sim.recorded.facts import Observations
from engine.sim.recorded.least_squares import Indistinct, fitted

FEWEST: Final = 4
"""The fewest observations: with fewer the residual is meaningless."""
NONE_TOLD: Final = "the facts do not contain it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    constant: Constant
    value: float
    num_observations: int = 0
    residual: float = 0.0
    """Root mean square, as a share of the mean observation."""
    error: float = 0.0
    """Of the value, by the scatter of the observations, as a share of it: one standard deviation."""
    why_not: str = ""
    """Why the constant could not be fitted, so that `value` is unchanged; empty: it was fitted."""


@dataclass(frozen=True, slots=True)
class DeviceFit:
    model: Model
    constants: tuple[Fitted, ...]

    @property
    def book(self) -> Book:
        return Book({each.constant.name: each.value / each.constant.value for each in self.constants})


def model_of(num_parameters: int, *, tensor_parallel: int = 1) -> Model:
    """The model, as far as the facts describe it. The bytes of keys and values are missing: no fact contains them."""
    return Model(
        name="recorded",
        weight_bytes=float(num_parameters * BYTES_PER_WEIGHT),
        kv_bytes=1.0,
        num_layers=1,
        tensor_parallel=tensor_parallel,
    )


def fit(seen: Observations, device: Device, *, tensor_parallel: int = 1, training: int = 1) -> DeviceFit:
    """`training`: devices. Raises `ValueError` if the run was never ready, so that its model is unknown."""
    if not seen.num_parameters:
        raise ValueError("the run never got ready: its facts do not contain the model's size")
    model = model_of(seen.num_parameters, tensor_parallel=tensor_parallel)
    of_decode = _decode(seen, device, model)
    of_training = _training(seen, device, model, training)
    bus_s = install_s(device, model, tp=tensor_parallel) - INSTALL_FIXED.value
    wire_s = broadcast_s(model, relays=1) - HOP_S.value
    grading = seen.grading_s if not seen.has_tools else []
    others = (
        _mean(HANDOVER_RATE, seen.handovers_s, lambda mean: HANDOVER_RATE.value * handover_s(model) / mean),
        _mean(HOP_S, seen.broadcasts_s, lambda mean: mean - wire_s),
        _mean(INSTALL_FIXED, seen.installs_s, lambda mean: mean - bus_s),
        _mean(GRADING_S, grading, lambda mean: mean, "its turns wait for tools too" if seen.has_tools else NONE_TOLD),
    )
    return DeviceFit(model, (*of_decode, *of_training, *others))


def _decode(seen: Observations, device: Device, model: Model) -> Iterator[Fitted]:
    """With a single model, reading its weights cannot be separated from the other costs of a step: the given share of
    the memory's rate stays."""
    yield _kept(READ_SHARE, "one model alone does not separate a step's reading from its overhead")
    those = (STEP_OVERHEAD, GEMM_SHARE, PREFILL_SHARE)
    rows = [[each.num_steps, each.num_tokens, each.num_prefilled] for each in seen.decoded]
    seconds = [each.seconds for each in seen.decoded]
    if len(rows) < FEWEST:
        yield from (_kept(each, f"{len(rows)} stretches of decoding, {FEWEST} are needed") for each in those)
        return
    try:
        solution = fitted(rows, seconds)
    except Indistinct:
        yield from (_kept(each, "its batches were all alike: steps, rows and prefill are one figure") for each in those)
        return
    (step_s, row_s, read_s), errors, num = solution.values, solution.errors, len(rows)
    batch = sum(each.num_tokens for each in seen.decoded) / sum(each.num_steps for each in seen.decoded)
    weights_s = DecodeCost.of(device, model, tp=model.tensor_parallel).weights_s
    is_of_memory = row_s * batch < weights_s
    overhead_s = max(0.0, step_s - weights_s) if is_of_memory else step_s
    yield _of(STEP_OVERHEAD, overhead_s, num, solution.residual, errors[0] / max(overhead_s, 1e-12))
    flops = device.flops * model.tensor_parallel
    if row_s == 0:
        yield _kept(GEMM_SHARE, "more rows took no longer than the scatter of steps shows")
    elif is_of_memory:
        yield _kept(GEMM_SHARE, f"steps of {batch:.1f} rows are bound by memory")
    else:
        yield _of(GEMM_SHARE, 2 * model.num_weights / (flops * row_s), num, solution.residual, errors[1] / row_s)
    if read_s > 0:
        yield _of(PREFILL_SHARE, 2 * model.num_weights / (flops * read_s), num, solution.residual, errors[2] / read_s)
    else:
        yield _kept(PREFILL_SHARE, "prefill is below zero: too little was read to measure it")


def _training(seen: Observations, device: Device, model: Model, training: int) -> Iterator[Fitted]:
    """Fits training with its log-probs, in the given proportion."""
    yield _kept(FORWARD_GAIN, "log-probs and updates are reported as one time")
    rows = [[each.num_tokens, each.num_updates] for each in seen.trained]
    seconds = [each.seconds for each in seen.trained]
    those = (MFU, HALF_TOKENS)
    if len(rows) < FEWEST:
        yield from (_kept(each, f"{len(rows)} steps, {FEWEST} are needed") for each in those)
        return
    try:
        solution = fitted(rows, seconds)
    except Indistinct:
        yield from (_kept(each, "batches were all of one size: tokens and updates are one figure") for each in those)
        return
    (token_s, update_s), errors, num = solution.values, solution.errors, len(rows)
    if token_s == 0:
        yield from (_kept(each, "more tokens took no longer") for each in those)
        return
    pass_s = model.num_weights / (training * device.flops)
    yield _of(MFU, (6 + 2 / FORWARD_GAIN.value) * pass_s / token_s, num, solution.residual, errors[0] / token_s)
    half = update_s / token_s / training
    yield _of(HALF_TOKENS, half, num, solution.residual, errors[1] / max(update_s, 1e-12))


def _mean(
    constant: Constant, observations: Sequence[float], value_of: Callable[[float], float], why_not: str = NONE_TOLD
) -> Fitted:
    if not observations:
        return _kept(constant, why_not)
    mean = sum(observations) / len(observations)
    if len(observations) < FEWEST:
        return _kept(constant, f"{len(observations)} observations, {FEWEST} are needed")
    value = value_of(mean) if mean > 0 else 0.0
    if value <= 0:
        return _kept(constant, "the bytes alone take longer at the given rate")
    spread = sqrt(sum((each - mean) ** 2 for each in observations) / len(observations)) / mean
    return _of(constant, value, len(observations), spread, spread / sqrt(len(observations) - 1))


def _of(constant: Constant, value: float, num: int, missed: float, error: float) -> Fitted:
    return Fitted(constant=constant, value=value, num_observations=num, residual=missed, error=error)


def _kept(constant: Constant, why_not: str) -> Fitted:
    return Fitted(constant=constant, value=AS_THEY_STAND(constant), why_not=why_not)


def as_document(each: Fitted) -> dict[str, Any]:
    """For a program; `factor` is what the book multiplies the constant by."""
    return {
        "name": each.constant.name,
        "value": each.value,
        "unit": each.constant.unit,
        "factor": each.value / each.constant.value,
        "observations": each.num_observations,
        "residual": None if each.why_not else each.residual,
        "error": None if each.why_not else each.error,
        "why_not": each.why_not,
    }
