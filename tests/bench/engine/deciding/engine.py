"""A rollout engine that counts what it does, in the terms that a device's constants price.

Invariant: it is the engine of live replicas; the counts are of work done.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from engine.inference.torch_engine import TorchRolloutEngine


@dataclass(slots=True, kw_only=True)
class Counted:
    steps: list[tuple[int, int]] = field(default_factory=list)
    """For each decode step: rows, and the tokens whose keys and values it read."""
    prefilled: list[int] = field(default_factory=list)
    """Tokens of each prefill pass."""
    installs: int = 0
    moved: int = 0
    """Tokens whose keys and values were packed for another replica."""

    @property
    def num_decoded(self) -> int:
        return sum(rows for rows, _ in self.steps)

    @property
    def num_prefilled(self) -> int:
        return sum(self.prefilled)

    @property
    def context(self) -> int:
        return sum(context for _, context in self.steps)


def together(counts: Sequence[Counted]) -> Counted:
    return Counted(
        steps=[step for each in counts for step in each.steps],
        prefilled=[tokens for each in counts for tokens in each.prefilled],
        installs=sum(each.installs for each in counts),
        moved=sum(each.moved for each in counts),
    )


class CountingEngine(TorchRolloutEngine):
    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.counted = Counted()

    def _at_forward(self, what: str, num_tokens: int) -> AbstractContextManager[None]:
        if what == "decode":
            context = sum(len(live.tokens) for live in self._scheduler.rows)
            self.counted.steps.append((num_tokens, context))
        elif what == "prefill":
            self.counted.prefilled.append(num_tokens)
        return super()._at_forward(what, num_tokens)
