"""The work of a sample: tokens to read, tokens to write in each turn, a call between two turns; and how it is drawn.

Invariants:
- the work depends on seed and sample only, so that all schedules have the same work;
- the samples of a group have the same prompt.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Protocol

from engine.pipeline.records import GroupKey, SampleKey
from engine.sim.chance import Chance
from engine.sim.costs.environment import Call, Tools
from engine.sim.costs.lengths import Lengths


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    prompt: int
    turns: tuple[int, ...]
    """Tokens to write in each."""
    calls: tuple[Call, ...] = ()
    """One call after each turn but the last."""

    def __post_init__(self) -> None:
        assert len(self.turns) == len(self.calls) + 1, f"{len(self.turns)} turns, {len(self.calls)} calls"
        assert min(self.turns) >= 1, "a turn without a token"

    @property
    def num_written(self) -> int:
        return sum(self.turns)

    @property
    def num_tokens(self) -> int:
        """All tokens, read and written."""
        return self.prompt + self.num_written + sum(call.tokens for call in self.calls)


NO_WORK: Final = Work(prompt=1, turns=(1,))
"""The work of a held-out prompt: evaluations are not simulated, but a plan has at least one."""


class Drawing(Protocol):
    def work(self, seed: int, key: SampleKey) -> Work: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Modelled:
    """Draws work from the models of lengths and tools."""

    lengths: Lengths
    tools: Tools | None

    def work(self, seed: int, key: SampleKey) -> Work:
        calls = () if self.tools is None else self.tools.calls(seed, key)
        turns = _even(self.lengths.response(seed, key), len(calls) + 1)
        return Work(prompt=self.lengths.prompt, turns=turns, calls=calls)


@dataclass(frozen=True)
class Recorded:
    """As in a run that took place. What it never ended is drawn among what it did: a sample of the same group, or a
    group for a group."""

    samples: Mapping[SampleKey, Work]

    def work(self, seed: int, key: SampleKey) -> Work:
        known = self.samples.get(key)
        if known is not None:
            return known
        group = self._groups.get(key.group) or self._another(seed, key.group)
        return group[key.sample % len(group)]

    def _another(self, seed: int, key: GroupKey) -> tuple[Work, ...]:
        groups = list(self._groups.values())
        return groups[Chance(seed, f"recorded/{key.evaluation}/{key.ordinal}").whole(0, len(groups) - 1)]

    @cached_property
    def _groups(self) -> Mapping[GroupKey, tuple[Work, ...]]:
        groups: dict[GroupKey, list[Work]] = {}
        for key in sorted(self.samples, key=_place):
            groups.setdefault(key.group, []).append(self.samples[key])
        assert groups, "a recording without a sample"
        return {key: tuple(works) for key, works in groups.items()}


def _place(key: SampleKey) -> tuple[int, int, int]:
    return (-1 if key.group.evaluation is None else key.group.evaluation, key.group.ordinal, key.sample)


def _even(tokens: int, num: int) -> tuple[int, ...]:
    """Splits tokens as evenly as possible, at least one per turn."""
    tokens = max(tokens, num)
    return tuple(tokens * (at + 1) // num - tokens * at // num for at in range(num))
