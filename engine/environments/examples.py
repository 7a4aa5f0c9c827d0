"""`python -m engine.environments.examples`: writes the example that each environment's page shows.

    engine/spec/environments/examples.json    question, answers, and the environment's responses and rewards

Invariant: the answers are written here; questions, observations and rewards come from the real environment. A test
regenerates the file and compares.
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
FILE: Final = SPEC / "environments" / "examples.json"
TEMPLATES: Final = SPEC / "templates"
SEED: Final = 0
Answer = Callable[[Sequence[str]], str]
"""From the prompt and all observations so far to the next turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    spec: EnvironmentSpec
    good: Answer
    poor: Answer


def summed(inputs: Sequence[str]) -> str:
    """The right answer, in the built-in model's format."""
    total, chain = 0, [0]
    for text in inputs:
        terms = [int(term) for term in re.findall(r"\d+", text)]
        chain = [(total + each) % MODULUS for each in running_sums(terms)]
        total = chain[-1]
    return answer_text(chain)


def slipped(inputs: Sequence[str]) -> str:
    """Off by one at the end."""
    *before, last = [int(each) for each in re.findall(r"\d+", summed(inputs))]
    return answer_text([*before, (last + 1) % MODULUS])


def by_calculator(inputs: Sequence[str]) -> str:
    *_, question = re.findall(r"What is (.*)\?", inputs[0])
    if len(inputs) == 1:
        return f"<tool>calculator {question}</tool>"
    return f"<answer>{re.findall(r'<result>(.*)</result>', inputs[-1])[0]}</answer>"


def by_guess(inputs: Sequence[str]) -> str:
    return "<answer>about 4000</answer>"


def chain_sum(inputs: Sequence[str]) -> str:
    terms = inputs[0].rpartition(":")[2]
    return str(sum(int(sign + digits) for sign, digits in re.findall(r"([+-]?) ?(\d+)", terms)))


def examples() -> dict[str, Example]:
    def of(name: str, good: Answer, poor: Answer, code: str = "", **params: Any) -> tuple[str, Example]:
        text = (TEMPLATES / code).read_text(encoding="utf-8") if code else ""
        spec = EnvironmentSpec.model_validate({"name": name, "params": params, "code": text})
        return name, Example(spec=spec, good=good, poor=poor)

    return dict(
        [
            of("running_sums", summed, slipped),
            of("tool_sums", summed, slipped, turns=3, waits="none"),
            of("reasoning_gym", chain_sum, lambda inputs: "I do not know.", task="chain_sum"),
            of("jsonl", summed, slipped, data="demo/sums", verifier="numeric"),
            of("graded", summed, slipped, code="own_judge.py", data="demo/sums"),
            of("tools", by_calculator, by_guess),
            of("custom", summed, slipped, code="own_code.py"),
        ]
    )


def run_example(name: str) -> dict[str, Any]:
    """The environment's first question, with both answers and its responses to them."""
    example = examples()[name]
    environment = make_environment(example.spec, seed=SEED, data_folder=None)
    prompt = environment.prompt("train", 0)

    def play(answer: Answer) -> dict[str, Any]:
        inputs, turns = [prompt.text], [Turn(text=answer([prompt.text]))]
        while isinstance(response := environment.respond(prompt, turns), Observation):
            inputs.append(response.text)
            turns.append(Turn(text=answer(inputs)))
        rows = [{"model": turn.text, "then": then} for turn, then in zip(turns, [*inputs[1:], ""], strict=True)]
        return {"turns": rows, "reward": response.reward, "parts": dict(response.parts), "remark": response.remark}

    return {
        "params": dict(example.spec.params),
        "code": example.spec.code,
        "asked": prompt.text,
        "answers": [play(example.good), play(example.poor)],
    }


def main() -> int:
    FILE.write_text(json.dumps({name: run_example(name) for name in examples()}, indent=1, ensure_ascii=False) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
