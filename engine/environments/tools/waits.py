"""Waits for a tool: drawn from the seed, and slept.

Tails are log-normal, as in measured tool calls. With the same mean, `tailed` and `constant` cost the same on average,
so a schedule that gains more on `tailed` gains it from the tail.

Invariant: a wait is a pure function of (seed, split, ordinal, sample, turn), so every schedule sees the same trace, in
any order of calls. The rollout puts the sample into the prompt's facts; without it the sample counts as 0.
"""

import math
import random
import time
from dataclasses import dataclass
from typing import Final

from engine.environments.port import Prompt

LONGEST_IN_MEANS: Final = 30.0  # with sigma 1.2 this caps one wait in 3,000, which could decide a whole benchmark


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    seed: int
    median_s: float
    sigma: float

    @classmethod
    def of_mean(cls, *, seed: int, mean_s: float, sigma: float) -> "Waits":
        return cls(seed=seed, median_s=mean_s / math.exp(sigma**2 / 2), sigma=sigma)

    def seconds(self, prompt: Prompt, turn: int) -> float:
        if self.median_s == 0:
            return 0.0
        sample = prompt.facts.get("sample", 0)
        rng = random.Random(f"waits/{self.seed}/{prompt.split}/{prompt.ordinal}/{sample}/{turn}")
        longest = LONGEST_IN_MEANS * self.median_s * math.exp(self.sigma**2 / 2)
        return min(self.median_s * rng.lognormvariate(0.0, self.sigma), longest)

    def wait(self, prompt: Prompt, turn: int) -> None:
        seconds = self.seconds(prompt, turn)
        if seconds > 0:
            time.sleep(seconds)
