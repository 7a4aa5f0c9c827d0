"""Probes: check that a replica computes with the weights that its trainer published.

    trainer   log-probs of a fixed row of tokens, in the version's manifest
    replica   log-probs of the same tokens from the engine that has just installed the version

Transfers verify bytes; a probe checks their use: a shard cut at another place, or a stale packed copy of a tied head or
of experts. No other check would detect that, and such a replica generates fluent text.

Invariants:
- the tokens depend on the size of the vocabulary alone;
- NaN differs from everything.
"""

import math
from collections.abc import Sequence
from typing import Final

from engine.weights.port import Probe, WeightManifest

NUM_TOKENS: Final = 64  # a forward of so many costs as much as a decode step: it reads the weights once
# A step that spreads the tokens over the whole vocabulary (Knuth's multiplicative hashing).
_STRIDE: Final = 2_654_435_761
_FIRST: Final = 7


class OtherWeights(Exception):
    """The installed weights are not the ones that the trainer published."""

    retryable = True  # in a new process


def probe_ids(vocab_size: int, *, max_positions: int) -> tuple[int, ...]:
    return tuple((_FIRST + place * _STRIDE) % vocab_size for place in range(min(NUM_TOKENS, max_positions)))


def compare(manifest: WeightManifest, logprobs: Sequence[float]) -> None:
    """`logprobs`: of the probe's tokens but the first, or of fewer if the engine had no room. Raises `OtherWeights`."""
    probe = manifest.probe
    if probe is None or not logprobs:
        return
    gaps = [abs(own - published) for own, published in zip(logprobs, probe.logprobs, strict=False)]
    mean = math.fsum(gaps) / len(gaps)
    if mean <= probe.tolerance:
        return
    worst = max(range(len(gaps)), key=lambda place: (math.isnan(gaps[place]), gaps[place]))
    raise OtherWeights(
        f"version {manifest.weights}: the installed weights are not the trainer's. The log-probs of {len(gaps)} tokens "
        f"differ by {mean:.3g} on average, where rounding explains {probe.tolerance:.3g}; the largest difference is "
        f"{gaps[worst]:.3g}, at token {worst + 1} (replica {logprobs[worst]:.4g}, trainer "
        f"{probe.logprobs[worst]:.4g}). {_describe_cause(probe)}"
    )


def _describe_cause(probe: Probe) -> str:
    if not all(map(math.isfinite, probe.logprobs)):
        return (
            "The trainer's own log-probs are not finite, so training has diverged: lower optimizer.learning_rate, or "
            "start from an earlier checkpoint"
        )
    return (
        "If every replica reports this, rollout.engine does not load this model as it is trained: choose the other "
        "engine; if only one host's do, its device or memory is faulty"
    )
