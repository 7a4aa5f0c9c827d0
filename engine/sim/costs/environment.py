"""Turns with tools: how many calls, how long each takes, how many tokens its answer has.

Nothing is published. This is a band: log-normal with a mean of 1 to 10 s a call, 2 to 8 calls, one in a hundred
of 60 to 300 s, 200 to 500 tokens an answer.
"""

from dataclasses import dataclass
from math import exp
from typing import Final

from engine.pipeline.records import SampleKey
from engine.sim.chance import Chance
from engine.sim.costs.constants import AS_THEY_STAND, Book, Constant

CALL_S: Final = Constant(
    name="call",
    value=3.2,
    unit="s, the mean without the slow ones",
    origin="assumed",
    source="the geometric middle of the band of 1 to 10 s",
    sweep=(0.31, 3.1),
)
SLOW_CALLS: Final = Constant(
    name="slow_calls", value=0.01, unit="of the calls, at 60 to 300 s", origin="assumed", source="the band"
)
ANSWER_TOKENS: Final = Constant(
    name="answer_tokens", value=350, unit="tokens", origin="assumed", source="the band", sweep=(0.57, 1.43)
)
FEWEST_CALLS: Final = 2
MOST_CALLS: Final = 8
CALL_SIGMA: Final = 1.0
"""Of the logarithm of a call's time; the band names none."""
SLOW_S: Final = (60.0, 300.0)


@dataclass(frozen=True, slots=True)
class Call:
    takes_s: float
    tokens: int
    """Of its answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    mean_s: float = CALL_S.value
    slow: float = SLOW_CALLS.value
    tokens: int = int(ANSWER_TOKENS.value)

    @classmethod
    def of(cls, book: Book = AS_THEY_STAND) -> "Tools":
        return cls(mean_s=book(CALL_S), slow=book(SLOW_CALLS), tokens=int(book(ANSWER_TOKENS)))

    def calls(self, seed: int, key: SampleKey) -> tuple[Call, ...]:
        if key.group.evaluation is not None:
            return ()
        chance = Chance(seed, f"calls/{key.group.ordinal}/{key.sample}")
        return tuple(self._call(chance) for _ in range(chance.whole(FEWEST_CALLS, MOST_CALLS)))

    def _call(self, chance: Chance) -> Call:
        median = self.mean_s / exp(CALL_SIGMA**2 / 2)
        usual_s = chance.lognormal(median=median, sigma=CALL_SIGMA)
        slow_s = chance.uniform(*SLOW_S)
        return Call(slow_s if chance.happens(self.slow) else usual_s, self.tokens)
