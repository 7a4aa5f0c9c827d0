"""A multi-turn job on a real Ray, with a model that has Qwen3's chat template."""

from collections.abc import Iterable, Iterator
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as RawTokenizer

from engine.live.run.attempt import Attempt, AttemptPlan
from engine.models.tokenizer import Tokenizer
from engine.sinks.memory import MemorySink
from engine.spec.facts import StepTrained, TrajectoriesSampled, TrajectorySample
from engine.spec.job import JobSpec
from tests.engine.chat_rules import END, save_qwen3

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("own_ray")]


def job(folder: Path) -> JobSpec:
    """A random model's turns end at frequent letters, and a tool answers every turn."""
    return JobSpec.model_validate(
        {
            "name": "chat",
            "model": {"source": str(folder), "chat_options": {"enable_thinking": False}},
            "environment": {"name": "tool_sums", "params": {"turns": 3, "waits": "none"}},
            "training": {"steps": 2, "prompts_per_step": 2, "checkpoint_every": 2},
            "algorithm": {"group_size": 4},
            "rollout": {"replicas": 1, "max_batch": 8, "max_new_tokens": 400, "stop": ["e", "a", "1"]},
            "evaluation": {"prompts": 2},
            "schedule": {"max_staleness": 1_000},
        }
    )


def between(text: str, begin: str, end: str) -> str:
    return text.rpartition(begin)[2].partition(end)[0]


def runs_of(sample: TrajectorySample) -> Iterator[tuple[bool, list[int]]]:
    assert sample.trace is not None
    tokens = zip(sample.trace.token_ids, sample.trace.written, strict=True)
    for is_own, run in groupby(tokens, key=lambda each: each[1]):
        yield is_own, [token for token, _ in run]


def by_question(sampled: Iterable[TrajectorySample]) -> dict[int, list[TrajectorySample]]:
    groups: dict[int, list[TrajectorySample]] = {}
    for sample in sampled:
        assert sample.group_size == 4
        groups.setdefault(sample.prompt_ordinal, []).append(sample)
    return groups


def assert_turns_match_the_conversation(sample: TrajectorySample) -> None:
    """Turns are in the order of their tokens, with the tool's call, its answer and its duration."""
    assert sample.trace is not None
    assert set(sample.parts) == {"all_right", "share_with_a_number"} or sample.outcome == "cut"
    for before, turn in pairwise(sample.turns):
        assert turn.first_token == before.first_token + before.num_tokens
        assert turn.text in sample.response
    for turn in sample.turns:
        own = sample.trace.written[turn.first_token : turn.first_token + turn.num_tokens]
        assert set(own) == {turn.author == "model"}
    for call, answered in zip(sample.turns[::2], sample.turns[1::2], strict=False):
        assert (call.author, call.tool) == ("model", "next_term")
        assert (answered.author, answered.tool, answered.error) == ("environment", "next_term", "")
        assert answered.text.startswith("+ ") and answered.text.endswith("=") and answered.seconds is not None


@pytest.mark.long
def test_multi_turn_job_uses_the_chat_template_and_trains(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    folder, sink = save_qwen3(tmp_path / "model"), MemorySink()
    finished = Attempt(AttemptPlan(spec=job(folder), checkpoints=tmp_path / "run"), sink, list).run(lambda: None)
    assert finished.outcome == "succeeded", finished.message
    steps = [body for body in sink.bodies if isinstance(body, StepTrained)]
    assert [step.step for step in steps] == [1, 2]
    sampled = [each for body in sink.bodies if isinstance(body, TrajectoriesSampled) for each in body.trajectories]
    by_transformers: Any = AutoTokenizer.from_pretrained(folder)
    raw, tokenizer = RawTokenizer.from_file(str(folder / "tokenizer.json")), Tokenizer.from_folder(folder)
    options = {"tokenize": False, "add_generation_prompt": True, "enable_thinking": False}
    rewrites: list[bool] = []
    assert {len(group) for group in by_question(sampled).values()} == {4}, "both groups of a step are reported whole"
    for sample in sampled:
        assert_turns_match_the_conversation(sample)
        messages = [{"role": "user", "content": between(sample.prompt, "user\n", END)}]
        history = sample.prompt
        assert sample.trace is not None
        texts, gaps = [*sample.trace.texts], zip(sample.trace.logprobs, sample.trace.trainer_logprobs, strict=True)
        assert max(abs(before - begun) for before, begun in gaps) < 1e-3 or sample.staleness
        assert history == by_transformers.apply_chat_template(messages, **options)
        for is_own, ids in runs_of(sample):
            text = raw.decode(ids, skip_special_tokens=False)
            spelled = "".join(texts.pop(0) for _ in ids)
            assert spelled == text or "\ufffd" in spelled
            if is_own:
                messages.append({"role": "assistant", "content": tokenizer.decode(ids)})
                history += text
                continue
            messages.append({"role": "tool", "content": between(text, "<tool_response>\n", "\n</tool_response>")})
            whole = by_transformers.apply_chat_template(messages, **options)
            rewrites.append(not whole.startswith(history))
            assert text == (whole if rewrites[-1] else whole[len(history) :])
            history = whole
    assert any(rewrites), "no turn was answered, or the template did not drop the empty thought"
    assert steps[0].metrics["length/segments"] > 1
    assert 0.0 <= steps[0].metrics["reward/part/share_with_a_number"] <= 1.0
