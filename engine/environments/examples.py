"""`python -m engine.environments.examples`: writes an example of every environment, as its page shows it.

    engine/spec/environment_examples.json    what was asked, what was said, and what the environment made of it

Invariant: answers are given here; questions, observations and rewards are the real environment's. A test makes them
again, and compares.
"""

import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from engine.environments.port import Observation, Turn
from engine.environments.registry import make_environment
from engine.environments.running_sums import MODULUS, answer_text, running_sums
from engine.spec.job import EnvironmentSpec

SPEC: Final = Path(__file__).parents[1] / "spec"
FILE: Final = SPEC / "environment_examples.json"
TEMPLATES: Final = SPEC / "templates"
SEED: Final = 0
Answer = Callable[[Sequence[str]], str]
"""Given all that was asked so far, the next turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    spec: EnvironmentSpec
    good: Answer
    poor: Answer


def summed(asked: Sequence[str]) -> str:
    """As the built-in model says it, and right."""
    total, chain = 0, [0]
    for text in asked:
        terms = [int(term) for term in re.findall(r"\d+", text)]
        chain = [(total + each) % MODULUS for each in running_sums(terms)]
        total = chain[-1]
    return answer_text(chain)


def slipped(asked: Sequence[str]) -> str:
    """Off by one at the end."""
    *before, last = [int(each) for each in re.findall(r"\d+", summed(asked))]
    return answer_text([*before, (last + 1) % MODULUS])


def by_calculator(asked: Sequence[str]) -> str:
    *_, question = re.findall(r"What is (.*)\?", asked[0])
    if len(asked) == 1:
        return f"<tool>calculator {question}</tool>"
    return f"<answer>{re.findall(r'<result>(.*)</result>', asked[-1])[0]}</answer>"


def by_heart(asked: Sequence[str]) -> str:
    return "<answer>about 4000</answer>"


def chain_sum(asked: Sequence[str]) -> str:
    said = asked[0].rpartition(":")[2]
    return str(sum(int(sign + digits) for sign, digits in re.findall(r"([+-]?) ?(\d+)", said)))


def examples() -> dict[str, Example]:
    def of(name: str, good: Answer, poor: Answer, code: str = "", **params: Any) -> tuple[str, Example]:
        text = (TEMPLATES / code).read_text(encoding="utf-8") if code else ""
        spec = EnvironmentSpec.model_validate({"name": name, "params": params, "code": text})
        return name, Example(spec=spec, good=good, poor=poor)

    return dict(
        [
            of("running_sums", summed, slipped),
            of("tool_sums", summed, slipped, turns=3, waits="none"),
            of("reasoning_gym", chain_sum, lambda asked: "I do not know.", task="chain_sum"),
            of("jsonl", summed, slipped, data="demo/sums", verifier="numeric"),
            of("graded", summed, slipped, code="own_judge.py", data="demo/sums"),
            of("tools", by_calculator, by_heart),
            of("custom", summed, slipped, code="own_code.py"),
        ]
    )


def tried(name: str) -> dict[str, Any]:
    """What the environment makes of both answers to its first question."""
    example = examples()[name]
    environment = make_environment(example.spec, seed=SEED, data_folder=None)
    prompt = environment.prompt("train", 0)

    def answered(answer: Answer) -> dict[str, Any]:
        asked, turns = [prompt.text], [Turn(text=answer([prompt.text]))]
        while isinstance(judged := environment.respond(prompt, turns), Observation):
            asked.append(judged.text)
            turns.append(Turn(text=answer(asked)))
        said = [{"model": turn.text, "then": then} for turn, then in zip(turns, [*asked[1:], ""], strict=True)]
        return {"turns": said, "reward": judged.reward, "parts": dict(judged.parts), "remark": judged.remark}

    return {
        "params": dict(example.spec.params),
        "code": example.spec.code,
        "asked": prompt.text,
        "answers": [answered(example.good), answered(example.poor)],
    }


def main() -> int:
    FILE.write_text(json.dumps({name: tried(name) for name in examples()}, indent=1, ensure_ascii=False) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
