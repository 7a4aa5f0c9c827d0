"""A job of several turns with a model that is spoken to as Qwen3 is, on a real Ray."""

from collections.abc import Iterator
from itertools import groupby
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
    """A random model's turns end by letters that it is bound to say, and a tool answers whatever it said."""
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
    said = zip(sample.trace.token_ids, sample.trace.written, strict=True)
    for is_own, run in groupby(said, key=lambda each: each[1]):
        yield is_own, [token for token, _ in run]


def test_a_job_of_several_turns_speaks_to_its_model_by_the_template_and_trains(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    folder, sink = save_qwen3(tmp_path / "model"), MemorySink()
    finished = Attempt(AttemptPlan(spec=job(folder), checkpoints=tmp_path / "run"), sink, list).run(lambda: None)
    assert finished.outcome == "succeeded", finished.message
    steps = [body for body in sink.bodies if isinstance(body, StepTrained)]
    assert [step.step for step in steps] == [1, 2]
    sampled = [each for body in sink.bodies if isinstance(body, TrajectoriesSampled) for each in body.trajectories]
    by_transformers: Any = AutoTokenizer.from_pretrained(folder)
    raw, tokenizer = RawTokenizer.from_file(str(folder / "tokenizer.json")), Tokenizer.from_folder(folder)
    asked = {"tokenize": False, "add_generation_prompt": True, "enable_thinking": False}
    begins_anew: list[bool] = []
    for sample in sampled:
        messages = [{"role": "user", "content": between(sample.prompt, "user\n", END)}]
        said = sample.prompt
        assert said == by_transformers.apply_chat_template(messages, **asked)
        for is_own, ids in runs_of(sample):
            text = raw.decode(ids, skip_special_tokens=False)
            if is_own:
                messages.append({"role": "assistant", "content": tokenizer.decode(ids)})
                said += text
                continue
            messages.append({"role": "tool", "content": between(text, "<tool_response>\n", "\n</tool_response>")})
            whole = by_transformers.apply_chat_template(messages, **asked)
            begins_anew.append(not whole.startswith(said))
            assert text == (whole if begins_anew[-1] else whole[len(said) :])
            said = whole
    assert any(begins_anew), "nobody was answered, or the template kept the empty thought that it drops"
    assert steps[0].metrics["length/segments"] > 1
