"""Lengths of responses: log-normal, half of the variance by prompt and half by sample, clipped at the longest allowed.

Invariant: a sample's length does not depend on the schedule: all schedules have the same work.
"""

from dataclasses import dataclass
from typing import Final

from engine.pipeline.records import SampleKey
from engine.sim.chance import Chance
from engine.sim.costs.constants import AS_THEY_STAND, Book, Constant

SIGMA: Final = Constant(
    name="sigma",
    value=0.99,
    unit="of the logarithm",
    origin="fitted",
    source="the 99th percentile is ten times the median: ln(10) / 2.326",
)
MEDIAN: Final = Constant(
    name="median_tokens",
    value=1_500,
    unit="tokens",
    origin="fitted",
    source="DORA: a mean response of 2.4K; swept from 1K to 3K",
    sweep=(0.67, 2.0),
)
PROMPT_TOKENS: Final = Constant(
    name="prompt_tokens",
    value=250,
    unit="tokens",
    origin="assumed",
    source="2K is the cap, and the mean is far below",
)
LONGEST_RESPONSE: Final = 16_384
LONGEST_PROMPT: Final = 2_048


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    median: float = MEDIAN.value
    sigma: float = SIGMA.value
    prompt: int = int(PROMPT_TOKENS.value)
    longest: int = LONGEST_RESPONSE

    @classmethod
    def of(cls, book: Book = AS_THEY_STAND, *, longest: int = LONGEST_RESPONSE) -> "Lengths":
        return cls(median=book(MEDIAN), sigma=book(SIGMA), prompt=int(book(PROMPT_TOKENS)), longest=longest)

    def response(self, seed: int, key: SampleKey) -> int:
        if key.group.evaluation is not None:
            return 1  # evaluations are not simulated, and nothing waits for them
        if self.sigma == 0:
            return min(self.longest, int(self.median))
        half = self.sigma / 2**0.5
        of_prompt = Chance(seed, f"length/{key.group.ordinal}")
        of_sample = Chance(seed, f"length/{key.group.ordinal}/{key.sample}")
        factor = of_prompt.lognormal(median=1.0, sigma=half) * of_sample.lognormal(median=1.0, sigma=half)
        return min(self.longest, max(1, int(self.median * factor)))
