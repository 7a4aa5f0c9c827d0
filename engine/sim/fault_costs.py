"""Durations in virtual seconds: small figures in the proportions of large ones.

Decoding is memory-bound: a token takes the same time for any batch up to `max_batch`. Lengths have a tail.

Any work may also take long: work that takes milliseconds with a small model takes minutes with a large one. It gives
signs of life with a bounded time between two of them; their number is not known in advance.
"""

from dataclasses import dataclass
from math import ceil
from typing import Final

from engine.pipeline.records import SampleKey
from engine.sim.chance import Chance

# The longest unit of work. An unnoticed freeze adds to it; both together are below the limit.
LONGEST_UNIT_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    token_s: float = 0.01
    prefill_s: float = 0.0005
    """For each token that is recomputed after an interruption or a move without its KV cache."""
    median_tokens: float = 20.0
    sigma: float = 0.99  # ln(10) / 2.326: the 99th percentile is ten times the median
    max_tokens: int = 400
    install_s: float = 0.02
    load_s: float = 0.5
    train_s: float = 0.25
    copy_s: float = 0.001
    save_s: float = 0.1
    persist_s: float = 0.002
    long_work: float = 0.0
    """The share of pieces of work that take long."""
    longest_s: float = 0.0
    sign_every_s: float = 5.0
    """The time between signs of life of longer work."""

    def num_tokens(self, seed: int, key: SampleKey) -> int:
        """A sample's length, the same at every start. Half of the variance is by prompt."""
        group = key.group
        if self.sigma == 0:
            return max(1, int(self.median_tokens))
        of_prompt = Chance(seed, f"length/{group.evaluation}/{group.ordinal}")
        of_sample = Chance(seed, f"length/{group.evaluation}/{group.ordinal}/{key.sample}")
        half = self.sigma / 2**0.5
        factor = of_prompt.lognormal(median=1.0, sigma=half) * of_sample.lognormal(median=1.0, sigma=half)
        return min(self.max_tokens, max(1, int(self.median_tokens * factor)))

    def stretches(self, chance: Chance, usual_s: float) -> tuple[float, ...]:
        """The seconds between the signs of life of one piece of work."""
        lasts_s, every_s = usual_s, self.sign_every_s
        if self.long_work and chance.happens(self.long_work):
            lasts_s, every_s = chance.uniform(usual_s, self.longest_s), chance.uniform(1.0, LONGEST_UNIT_S)
        num = max(1, ceil(lasts_s / every_s))
        return tuple(lasts_s / num * chance.uniform(0.5, 1.5) if num > 1 else lasts_s for _ in range(num))
