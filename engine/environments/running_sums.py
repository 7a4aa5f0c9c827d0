"""Running sums: add up K digits one by one, writing every sum on the way.

    prompt    3 + 8 + 5 =
    answer     3 → 11 → 16.

Sums are kept modulo 100. K is log-normal (median 6, at most 64), so answers are heavy-tailed: the 99th percentile is
about eight times the median, as in real reasoning data, and anyone can check an answer by eye.

Invariants:
- the reward is 1 if every sum is right, otherwise 0 (judging only the last sum and the number of steps would reward two
  slips that cancel out, as in a third of the demo model's first rewards);
- the closing full stop may be missing: it is the end token, which some engines do not return;
- the split of a prompt follows from its terms alone, so train and held-out are disjoint over all seeds.
"""

import hashlib
import random
import re
from collections.abc import Sequence
from itertools import accumulate
from typing import ClassVar, Final, Self

from engine.environments.params import ParamReader, Params
from engine.environments.port import GraderError, Prompt, Split, Turn, Verdict

MODULUS: Final = 100
MIN_TERMS: Final = 2
MAX_TERMS: Final = 64
ARROW: Final = " → "
FULL_STOP: Final = "."
_HELD_OUT_BYTES: Final = 32  # of 256 values of a hash byte: one eighth of all prompts is held out
_CHAIN: Final = re.compile(rf"\s*\d{{1,4}}(?:{ARROW}\d{{1,4}})*")


def prompt_text(terms: Sequence[int]) -> str:
    return " + ".join(map(str, terms)) + " ="


def running_sums(terms: Sequence[int]) -> list[int]:
    return [total % MODULUS for total in accumulate(terms)]


def answer_text(sums: Sequence[int]) -> str:
    return " " + ARROW.join(map(str, sums)) + FULL_STOP


def split_of(terms: Sequence[int]) -> Split:
    digest = hashlib.blake2b(bytes(terms), digest_size=1).digest()
    return "held_out" if digest[0] < _HELD_OUT_BYTES else "train"


class RunningSums:
    name: ClassVar[str] = "running_sums"

    def __init__(
        self, *, seed: int, median_terms: float = 6.0, sigma: float = 0.95, max_terms: int = MAX_TERMS
    ) -> None:
        if not MIN_TERMS <= median_terms <= max_terms:
            raise ValueError(f"median_terms: from {MIN_TERMS} to max_terms ({max_terms}), got {median_terms}")
        if not 0 <= sigma <= 3:
            raise ValueError(f"sigma: from 0 to 3, got {sigma}")
        if max_terms > MAX_TERMS:
            raise ValueError(f"max_terms: at most {MAX_TERMS}, got {max_terms}")
        self._seed = seed
        self._median_terms = median_terms
        self._sigma = sigma
        self._max_terms = max_terms

    @classmethod
    def from_params(cls, seed: int, params: Params) -> Self:
        reader = ParamReader(cls.name, params)
        environment = cls(
            seed=seed,
            median_terms=reader.number("median_terms"),
            sigma=reader.number("sigma"),
            max_terms=reader.whole("max_terms"),
        )
        reader.finish()
        return environment

    def prompt(self, split: Split, ordinal: int) -> Prompt:
        if split not in ("train", "held_out"):
            raise ValueError(f"split: train or held_out, got {split!r}")
        if ordinal < 0:
            raise ValueError(f"ordinal: 0 or more, got {ordinal}")
        # A string seed is hashed by SHA-512, so the stream is the same in every process (hash() is not).
        rng = random.Random(f"running_sums/{self._seed}/{split}/{ordinal}")
        num_terms = self._draw_num_terms(rng)
        terms = _draw_terms(rng, num_terms)
        while split_of(terms) != split:  # keeps the number of terms: its distribution is the same in both splits
            terms = _draw_terms(rng, num_terms)
        facts: dict[str, str | int] = {"terms": " ".join(map(str, terms)), "end": sum(terms) % MODULUS}
        return Prompt(split=split, ordinal=ordinal, text=prompt_text(terms), facts=facts)

    def respond(self, prompt: Prompt, turns: Sequence[Turn]) -> Verdict:
        if len(turns) != 1:
            raise ValueError(f"turns: running_sums has exactly one, got {len(turns)}")
        return grade(_terms_of(prompt), turns[0].text)

    def _draw_num_terms(self, rng: random.Random) -> int:
        drawn = round(self._median_terms * rng.lognormvariate(0.0, self._sigma))
        return min(max(drawn, MIN_TERMS), self._max_terms)


def grade(terms: Sequence[int], answer: str) -> Verdict:
    due = running_sums(terms)
    chain = answer.rstrip().removesuffix(FULL_STOP)
    well_formed = _CHAIN.fullmatch(chain) is not None
    sums = [int(step) for step in chain.split(ARROW)] if well_formed else []
    right_end = well_formed and sums[-1] == due[-1]
    right_steps = len(sums) == len(due)
    num_right = sum(a == b for a, b in zip(sums, due, strict=False))
    return Verdict(
        reward=float(sums == due),
        parts={
            "well_formed": float(well_formed),
            "right_end": float(right_end),
            "right_steps": float(right_steps),
            "share_of_steps_right": num_right / max(len(sums), len(due)),
        },
        trusted=True,
        remark=_describe(due, sums),
    )


def _describe(due: Sequence[int], sums: Sequence[int]) -> str:
    if not sums:
        return "not a chain of sums"
    slip = next((i for i, (a, b) in enumerate(zip(sums, due, strict=False)) if a != b), None)
    if sums == due:
        return f"right: {due[-1]} in {len(due)} steps"
    if slip is not None:
        return f"step {slip + 1} is {sums[slip]}, should be {due[slip]}"
    if len(sums) < len(due):
        return f"stopped after {len(sums)} of {len(due)} steps"
    return f"{len(sums)} steps instead of {len(due)}"


def _draw_terms(rng: random.Random, num_terms: int) -> list[int]:
    return [rng.randint(1, 9) for _ in range(num_terms)]


def _terms_of(prompt: Prompt) -> list[int]:
    try:
        return [int(term) for term in str(prompt.facts["terms"]).split()]
    except (KeyError, ValueError) as error:
        # The engine wrote the facts itself, so a retry cannot repair them.
        raise GraderError(f"running_sums: prompt {prompt.ordinal} has no readable terms", retryable=False) from error
