"""The alarm of a trainer: rollouts and trainer disagree about what the same weights say.

Invariant: it rings when the gap at lag 0 goes beyond what rounding explains, and not again until it was within it.
"""

from collections.abc import Mapping
from typing import Final

from engine.pipeline.messages.to_driver import FaultReported

GAP: Final = "train/logprob_gap_p90"
BOUND: Final = "train/logprob_gap_bound"


class GapAlarm:
    def __init__(self) -> None:
        self._has_rung = False

    def hear(self, step: int, metrics: Mapping[str, float]) -> list[FaultReported]:
        """A step in which nothing was written by the weights that are trained says nothing."""
        gap, bound = metrics.get(GAP), metrics.get(BOUND)
        if gap is None or bound is None:
            return []
        is_new, self._has_rung = gap > bound and not self._has_rung, gap > bound
        return [_told(step, gap, bound)] if is_new else []


def _told(step: int, gap: float, bound: float) -> FaultReported:
    return FaultReported(
        component="trainer",
        message=f"step {step}: rollouts and trainer disagree about the same weights. One token in ten is "
        f"{gap:.2g} nats or more apart; rounding explains up to {bound:.2g}",
        action="training goes on, with ratios that are wrong by so much. If the gap grows with the position in the "
        "response, compare attention and KV dtype of both; else sampling settings, tokenizer and weights that were "
        "handed over. A mixture of experts chooses other experts at such a gap: replay its routes, or train in float32",
    )
