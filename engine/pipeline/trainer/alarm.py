"""The trainer's alarm: rollouts and trainer disagree about log-probs of the same weights.

Invariant: it rings when the gap at lag 0 exceeds the rounding bound, and not again until the gap was within it.
"""

from collections.abc import Mapping
from typing import Final

from engine.pipeline.messages.to_driver import FaultReported

GAP: Final = "train/logprob_gap_p90"
BOUND: Final = "train/logprob_gap_bound"


class GapAlarm:
    def __init__(self) -> None:
        self._has_rung = False

    def receive(self, step: int, metrics: Mapping[str, float]) -> list[FaultReported]:
        """A step without tokens by the weights in training is skipped."""
        gap, bound = metrics.get(GAP), metrics.get(BOUND)
        if gap is None or bound is None:
            return []
        is_new, self._has_rung = gap > bound and not self._has_rung, gap > bound
        return [_make_fault(step, gap, bound)] if is_new else []


def _make_fault(step: int, gap: float, bound: float) -> FaultReported:
    return FaultReported(
        component="trainer",
        message=f"step {step}: rollouts and trainer disagree about the same weights. One token in ten differs by "
        f"{gap:.2g} nats or more; rounding explains up to {bound:.2g}",
        action="training continues, with ratios off by that much. If the gap grows with the position in the response, "
        "compare attention and KV dtype of both; otherwise sampling settings, tokenizer and the weights handed over. "
        "A mixture of experts picks other experts at such a gap: replay its routes, or train in float32",
    )
