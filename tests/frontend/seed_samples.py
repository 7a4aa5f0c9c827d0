"""The samples of a step of the seeded world: whole groups, turns with a tool, tokens with texts, and every end.

two whole groups, one of them with a tool; then one sample each that was filtered, dropped as stale, failed
"""

import math
import random
import re
from collections.abc import Iterator, Sequence
from typing import Any

from engine.spec.facts import TokenTrace, TrajectorySample, Turn

GROUP_SIZE = 4
QUESTIONS_A_STEP = 16
SAMPLES_A_STEP = 2 * GROUP_SIZE + 3
_TOKEN = re.compile(r"\s*(?:\w+|[^\w\s]+)|\s+")
_UNTRAINED: tuple[dict[str, Any], ...] = (
    {"end": "filtered", "reason": "All samples of its group have the reward 0."},
    {"end": "dropped_stale", "reason": "Written by version 3, which was 5 behind where 4 are allowed.", "staleness": 5},
    {"end": "failed", "outcome": "timeout", "reason": "The environment gave no reward within 30 s, three times."},
)


def samples_of_step(step: int, mean: float, rng: random.Random) -> Sequence[TrajectorySample]:
    return list(_samples(step, mean, rng))


def _samples(step: int, mean: float, rng: random.Random) -> Iterator[TrajectorySample]:
    first = step * QUESTIONS_A_STEP
    for question in (first, first + 1):
        terms = [rng.randint(1, 9) for _ in range(min(40, max(2, round(6 * rng.lognormvariate(0, 0.8)))))]
        for sample in range(GROUP_SIZE):
            told = {"prompt_ordinal": question, "sample": sample}
            yield _answered(step, terms, rng, is_right=rng.random() < mean, has_tool=question > first, **told)
    for nth, fate in enumerate(_UNTRAINED):
        terms = [rng.randint(1, 9) for _ in range(5)]
        told = {"prompt_ordinal": first + 2 + nth, "sample": nth}
        yield _answered(step, terms, rng, is_right=False, has_tool=False, **told | fate)


def _answered(
    step: int, terms: Sequence[int], rng: random.Random, *, is_right: bool, has_tool: bool, **told: Any
) -> TrajectorySample:
    sums = [sum(terms[: at + 1]) % 100 for at in range(len(terms))]
    said = sums if is_right else [*sums[:-1], (sums[-1] + 1) % 100]
    last = " " + " → ".join(map(str, said)) + "."
    turns = _with_tool(terms, last) if has_tool else [("model", last, {})]
    version = max(0, step - rng.choice((1, 1, 2)))
    pieces = [(author, token) for author, text, _ in turns for token in _TOKEN.findall(text)]
    return TrajectorySample.model_validate({
        "version": version, "staleness": rng.choice((0, 1, 1, 2)), "num_tokens": len(pieces),
        "reward": float(is_right), "advantage": 0.9 if is_right else -0.7,
        "prompt": " + ".join(map(str, terms)) + " =", "response": "".join(text for _, text, _ in turns),
        "remark": f"right: {sums[-1]}" if is_right else f"said {said[-1]}, should be {sums[-1]}",
        "trace": _traced(pieces, version, rng, was_trained=told.get("end", "trained") == "trained"),
        "group_size": GROUP_SIZE, "turns": _turns(turns) if has_tool else [],
        "parts": {"right": float(is_right), "brief": 0.1 if len(terms) < 6 else 0.0} if has_tool else {},
        **told,
    })  # fmt: skip


def _with_tool(terms: Sequence[int], last: str) -> list[tuple[str, str, dict[str, Any]]]:
    call, wrong = f'{{"terms": {list(terms)}}}', '{"terms": "all of them"}'
    return [
        ("model", f" I add them up with <add>{wrong}</add>", {"tool": "add", "arguments": wrong}),
        ("environment", "\nterms: a list of numbers, got a text\n",
         {"tool": "add", "seconds": 0.012, "error": "terms: a list of numbers, got a text"}),
        ("model", f" Once more: <add>{call}</add>", {"tool": "add", "arguments": call}),
        ("environment", f"\n{sum(terms)}\n", {"tool": "add", "seconds": 0.34}),
        ("model", last, {}),
    ]  # fmt: skip


def _turns(turns: Sequence[tuple[str, str, dict[str, Any]]]) -> Sequence[Turn]:
    made, at = list[Turn](), 0
    for author, text, more in turns:
        place = {"first_token": at, "num_tokens": len(_TOKEN.findall(text))}
        made.append(Turn.model_validate({"author": author, "text": text} | place | more))
        at += place["num_tokens"]
    return made


def _traced(pieces: Sequence[tuple[str, str]], version: int, rng: random.Random, *, was_trained: bool) -> TokenTrace:
    written = [author == "model" for author, _ in pieces]
    logprobs = [math.log(min(0.999, rng.betavariate(3, 0.6) + 1e-3)) if mine else 0.0 for mine in written]
    gaps = [rng.gauss(0, 0.03) if mine else 0.0 for mine in written]
    return TokenTrace(
        token_ids=[sum(map(ord, text)) % 50_000 for _, text in pieces],
        logprobs=logprobs,
        versions=[version + (2 * at > len(pieces)) for at in range(len(pieces))],
        written=written,
        texts=[text for _, text in pieces],
        trainer_logprobs=[ours + gap for ours, gap in zip(logprobs, gaps, strict=True)] if was_trained else [],
    )
