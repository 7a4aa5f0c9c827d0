"""Tool sums: running sums over several turns, with a wait for a tool between them.

    prompt    3 + 8 =
    answer     3 → 11.
                          (wait)
    tool       + 5 =
    answer     → 16.
                          (wait)
    tool       + 9 =
    answer     → 25.

It uses the demo model's vocabulary, and any answer leads to the next turn, right or wrong: so an untrained demo model
can run it, and the seed alone sets the work of a trajectory. The benchmark of schedules runs on it.

Invariants:
- a turn is right if its last number is the sum so far, modulo 100; the reward is the share of right turns;
- a trajectory has exactly `turns` turns, with one wait between two turns;
- the split of a prompt follows from its terms alone.
"""

import random
import re
from collections.abc import Sequence
from typing import ClassVar, Final, Literal, Self, cast

from engine.environments.params import ParamReader, Params
from engine.environments.port import GraderError, Observation, Prompt, Split, Turn, Verdict
from engine.environments.running_sums import prompt_text, running_sums, split_of
from engine.environments.splits import check_place
from engine.environments.tools.waits import Waits

WaitKind = Literal["tailed", "constant", "none"]
_NUMBER: Final = re.compile(r"\d{1,4}")


class ToolSums:
    name: ClassVar[str] = "tool_sums"

    def __init__(
        self,
        *,
        seed: int,
        turns: int = 4,
        waits: WaitKind = "tailed",
        wait_mean_s: float = 0.1,
        wait_sigma: float = 1.2,
    ) -> None:
        self._seed = seed
        self.num_turns = turns
        mean_s = 0.0 if waits == "none" else wait_mean_s
        self.waits = Waits.of_mean(seed=seed, mean_s=mean_s, sigma=wait_sigma if waits == "tailed" else 0.0)

    @classmethod
    def from_params(cls, seed: int, params: Params) -> Self:
        reader = ParamReader(cls.name, params)
        environment = cls(
            seed=seed,
            turns=reader.whole("turns"),
            waits=cast(WaitKind, reader.text("waits")),
            wait_mean_s=reader.number("wait_mean_s"),
            wait_sigma=reader.number("wait_sigma"),
        )
        reader.finish()
        return environment

    def prompt(self, split: Split, ordinal: int) -> Prompt:
        check_place(split, ordinal)
        rng = random.Random(f"tool_sums/{self._seed}/{split}/{ordinal}")
        terms = self._draw(rng)
        while split_of(terms[:2]) != split:  # the prompt has the first two terms
            terms = self._draw(rng)
        facts: dict[str, str | int] = {"terms": " ".join(map(str, terms))}
        return Prompt(split=split, ordinal=ordinal, text=prompt_text(terms[:2]), facts=facts)

    def respond(self, prompt: Prompt, turns: Sequence[Turn]) -> Observation | Verdict:
        terms = _terms_of(prompt)
        if not 1 <= len(turns) <= self.num_turns:
            raise ValueError(f"turns: from 1 to {self.num_turns}, got {len(turns)}")
        if len(turns) < self.num_turns:
            self.waits.wait(prompt, len(turns) - 1)
            return self.observation(prompt, len(turns))
        return grade(terms, [turn.text for turn in turns])

    def conclude(self, prompt: Prompt, turns: Sequence[Turn]) -> Verdict:
        """Missing turns count as wrong."""
        missing = [""] * (self.num_turns - len(turns))
        return grade(_terms_of(prompt), [*(turn.text for turn in turns), *missing])

    def observation(self, prompt: Prompt, num_turns: int) -> Observation:
        """The tool's result after `num_turns` turns, without the wait."""
        return Observation(text=f" + {_terms_of(prompt)[num_turns + 1]} =", role="tool", tool="next_term")

    def _draw(self, rng: random.Random) -> list[int]:
        return [rng.randint(1, 9) for _ in range(self.num_turns + 1)]


def grade(terms: Sequence[int], turns: Sequence[str]) -> Verdict:
    due = running_sums(terms)[1:]
    numbers = [_NUMBER.findall(text) for text in turns]
    right = [bool(each) and int(each[-1]) == total for each, total in zip(numbers, due, strict=True)]
    slip = next((at for at, is_right in enumerate(right) if not is_right), None)
    remark = f"right in all of {len(due)} turns"
    if slip is not None:
        remark = f"turn {slip + 1}: got {numbers[slip][-1] if numbers[slip] else 'no number'}, should be {due[slip]}"
    return Verdict(
        reward=sum(right) / len(due),
        parts={"all_right": float(all(right)), "share_with_a_number": sum(map(bool, numbers)) / len(due)},
        trusted=True,
        remark=remark,
    )


def _terms_of(prompt: Prompt) -> list[int]:
    try:
        return [int(term) for term in str(prompt.facts["terms"]).split()]
    except (KeyError, ValueError) as error:
        raise GraderError(f"tool_sums: prompt {prompt.ordinal} has no readable terms", retryable=False) from error
