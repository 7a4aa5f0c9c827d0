"""Running sums: add up K digits one by one, saying every sum on the way.

    prompt    3 + 8 + 5 =
    answer     3 → 11 → 16.

Sums are kept modulo 100. K is log-normal (median 6, at most 64), so answers are heavy-tailed: the 99th percentile is
about eight times the median, as in real reasoning data, and anyone can check an answer by eye.

Invariants:
- reward is 1 if every sum is right, and 0 otherwise (judging the last sum and the number of steps alone would pay two
  slips that cancel out, and a third of the demo model's first rewards were such luck);
- the closing full stop may be missing: it is the end token, and engines differ in whether they hand that over;
- the split of a prompt follows from its terms alone, so that train and held-out are disjoint over all seeds.
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
        made = cls(
            seed=seed,
            median_terms=reader.number("median_terms"),
            sigma=reader.number("sigma"),
            max_terms=reader.whole("max_terms"),
        )
        reader.finish()
        return made

    def prompt(self, split: Split, ordinal: int) -> Prompt:
        if split not in ("train", "held_out"):
            raise ValueError(f"split: train or held_out, got {split!r}")
        if ordinal < 0:
            raise ValueError(f"ordinal: 0 or more, got {ordinal}")
        # A string seed is hashed by SHA-512, so the stream is the same in every process (hash() is not).
        rng = random.Random(f"running_sums/{self._seed}/{split}/{ordinal}")
        num_terms = self._draw_num_terms(rng)
        terms = _draw_terms(rng, num_terms)
        while split_of(terms) != split:  # the length stays, so that both splits have the same lengths
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
    said = [int(step) for step in chain.split(ARROW)] if well_formed else []
    right_end = well_formed and said[-1] == due[-1]
    right_steps = len(said) == len(due)
    num_right = sum(a == b for a, b in zip(said, due, strict=False))
    return Verdict(
        reward=float(said == due),
        parts={
            "well_formed": float(well_formed),
            "right_end": float(right_end),
            "right_steps": float(right_steps),
            "share_of_steps_right": num_right / max(len(said), len(due)),
        },
        trusted=True,
        remark=_remark(due, said),
    )


def _remark(due: Sequence[int], said: Sequence[int]) -> str:
    if not said:
        return "not a chain of sums"
    slip = next((i for i, (a, b) in enumerate(zip(said, due, strict=False)) if a != b), None)
    if said == due:
        return f"right: {due[-1]} in {len(due)} steps"
    if slip is not None:
        return f"step {slip + 1} said {said[slip]}, should be {due[slip]}"
    if len(said) < len(due):
        return f"gave up after {len(said)} of {len(due)} steps"
    return f"went on for {len(said)} steps, {len(due)} were asked"


def _draw_terms(rng: random.Random, num_terms: int) -> list[int]:
    return [rng.randint(1, 9) for _ in range(num_terms)]


def _terms_of(prompt: Prompt) -> list[int]:
    try:
        return [int(term) for term in str(prompt.facts["terms"]).split()]
    except (KeyError, ValueError) as error:
        # The facts are the engine's own; asking again cannot repair them.
        raise GraderError(f"running_sums: prompt {prompt.ordinal} has no readable terms", retryable=False) from error
