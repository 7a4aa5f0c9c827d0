"""What things cost in virtual seconds: small figures in the proportions of large ones.

Decoding is bound by memory: a token takes as long whatever the batch, up to `max_batch`. Lengths have a tail.
"""

from dataclasses import dataclass

from engine.pipeline.records import SampleKey
from engine.sim.chance import Chance


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    token_s: float = 0.01
    prefill_s: float = 0.0005
    """For each token that is computed anew after an interruption or a move without its KV cache."""
    median_tokens: float = 20.0
    sigma: float = 0.99  # ln(10) / 2.326: the 99th percentile is ten times the median
    max_tokens: int = 400
    install_s: float = 0.02
    train_s: float = 0.25
    save_s: float = 0.1
    persist_s: float = 0.002

    def num_tokens(self, seed: int, key: SampleKey) -> int:
        """The same for the same sample, however often it is begun. Half of the variance is the prompt's."""
        group = key.group
        if self.sigma == 0:
            return max(1, int(self.median_tokens))
        of_prompt = Chance(seed, f"length/{group.evaluation}/{group.ordinal}")
        of_sample = Chance(seed, f"length/{group.evaluation}/{group.ordinal}/{key.sample}")
        half = self.sigma / 2**0.5
        factor = of_prompt.lognormal(median=1.0, sigma=half) * of_sample.lognormal(median=1.0, sigma=half)
        return min(self.max_tokens, max(1, int(self.median_tokens * factor)))
