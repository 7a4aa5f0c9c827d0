"""Probes: whether a replica computes by the weights that its trainer published.

    trainer   log-probs of a fixed row of tokens, in the version's manifest
    replica   the same tokens, read by the engine that has just installed the version

Bytes are verified on their way; this is about what became of them: a shard that was cut elsewhere, a tied head or
experts whose packed copy is still the old one. Nothing else would tell, and such a replica answers fluently.

Invariants:
- the tokens depend on the size of the vocabulary alone;
- what is not a number differs from everything.
"""

import math
from collections.abc import Sequence
from typing import Final

from engine.weights.port import Probe, WeightManifest

NUM_TOKENS: Final = 64  # a forward of as many costs what a decode step does: the weights are read once
# Steps by which two of the row are as far apart as any (Knuth's multiplicative hashing): all of the vocabulary is met.
_STRIDE: Final = 2_654_435_761
_FIRST: Final = 7


class OtherWeights(Exception):
    """What was installed does not compute what the trainer computes."""

    retryable = True  # in another process


def probe_ids(vocab_size: int, *, max_positions: int) -> tuple[int, ...]:
    return tuple((_FIRST + place * _STRIDE) % vocab_size for place in range(min(NUM_TOKENS, max_positions)))


def compare(manifest: WeightManifest, found: Sequence[float]) -> None:
    """`found`: log-probs of the probe's tokens but the first, or of fewer where there was no room. Raises
    `OtherWeights`."""
    probe = manifest.probe
    if probe is None or not found:
        return
    apart = [abs(own - said) for own, said in zip(found, probe.logprobs, strict=False)]
    mean = math.fsum(apart) / len(apart)
    if mean <= probe.tolerance:
        return
    worst = max(range(len(apart)), key=lambda place: (math.isnan(apart[place]), apart[place]))
    raise OtherWeights(
        f"version {manifest.weights}: the installed weights are not the trainer's. Of {len(apart)} tokens the "
        f"log-probs differ by {mean:.3g} on average, where rounding explains {probe.tolerance:.3g}; the largest "
        f"difference is {apart[worst]:.3g}, at token {worst + 1} ({found[worst]:.4g} here, {probe.logprobs[worst]:.4g} "
        f"there). {_advice(probe)}"
    )


def _advice(probe: Probe) -> str:
    if not all(map(math.isfinite, probe.logprobs)):
        return (
            "The trainer's own are no numbers, so training has diverged: lower optimizer.learning_rate, or begin from "
            "an earlier checkpoint"
        )
    return (
        "If every replica says so, rollout.engine does not load this model as it is trained: choose the other one; if "
        "only one host's do, its device or memory is faulty"
    )
