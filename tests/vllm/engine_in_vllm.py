"""Tests of vLLM's own parts: its prefix cache under swaps, its preemption, its process, and draws equal to torch's."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.inference.torch_engine import TorchRolloutEngine
from engine.models.loading import DEMO_FOLDER
from tests.engine.inference.rollout_engine_builders import (
    MAX_POSITIONS,
    Reference,
    answer,
    ask,
    finish,
    make_model,
    own_weights,
    perturbed,
    step_until,
)
from tests.vllm.conftest import MakeVllm

LONG = tuple(5 + i % 40 for i in range(100))  # three whole blocks, and a partial one


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return make_model(tmp_path_factory.mktemp("model"))


def test_no_prompt_finds_pages_of_the_old_weights(make_engine: MakeVllm, base: Reference) -> None:
    engine = make_engine(base.folder)
    weights, changed = perturbed(base, version=2)
    engine.submit([ask(f"before {i}", LONG, new=60) for i in range(8)])
    step_until(engine, "before 0", 3)
    engine.submit([ask("waits", LONG)])
    assert engine.view().num_waiting == 1
    engine.install(weights)
    engine.submit([ask("after", LONG)])
    outputs = finish(engine)
    assert outputs["waits"].token_ids == outputs["after"].token_ids == changed.greedy(LONG, 24)
    engine.install(own_weights(base, version=3))
    assert answer(engine, ask("idle", LONG)).token_ids == base.greedy(LONG, 24) != changed.greedy(LONG, 24)


def test_shared_prompt_is_read_once(make_engine: MakeVllm, base: Reference) -> None:
    engine = make_engine(base.folder)
    before = engine.view().num_prefilled
    engine.submit([ask(str(i), LONG[::-1], new=2, temperature=1.0, seed=i) for i in range(8)])
    finish(engine)
    read = engine.view().num_prefilled - before
    assert len(LONG) - 1 <= read < 2 * len(LONG)


def test_sequence_across_a_swap_moves_with_its_mixed_pages(make_engine: MakeVllm, base: Reference) -> None:
    first, second = make_engine(base.folder), make_engine(base.folder, copy=1)
    weights, _ = perturbed(base, version=2)
    requests = (ask("a", LONG, new=40, temperature=2.0, seed=seed) for seed in range(50))
    talkative = next(each for each in requests if len(answer(first, each).token_ids) > 30)
    first.submit([talkative])
    step_until(first, "a", 6)
    first.install(weights)
    step_until(first, "a", 12)
    (copy,) = first.export(["a"], leave=False, with_kv=True)
    assert copy.progress is not None and copy.progress.kv is not None and copy.progress.kv.mixed
    second.install(weights)
    second.submit([copy])
    assert finish(second)["a"] == finish(first)["a"]


def test_unfit_pages_are_recomputed_and_torn_ones_refused(make_engine: MakeVllm, base: Reference) -> None:
    first, second = make_engine(base.folder), make_engine(base.folder, copy=1)
    first.submit([ask("a", LONG, new=12)])
    step_until(first, "a", 2)
    (moved,) = first.export(["a"], leave=True, with_kv=True)
    assert moved.progress is not None and moved.progress.kv is not None
    kv = moved.progress.kv
    for foreign in (replace(kv, layout="of another engine"), replace(kv, version=7)):
        before = second.view().num_prefilled
        output = answer(second, replace(moved, progress=replace(moved.progress, kv=foreign)))
        assert output.token_ids == base.greedy(LONG, 12)
        second.install(own_weights(base, version=0))  # forgets the prompt
        assert second.view().num_prefilled > before
    torn = replace(kv, data=kv.data[:-1])
    with pytest.raises(ValueError, match=r"'a': .* torn"):
        second.submit([replace(moved, progress=replace(moved.progress, kv=torn))])


def test_small_cache_delays_sequences_and_changes_no_token(make_engine: MakeVllm, base: Reference) -> None:
    roomy, narrow = make_engine(base.folder), make_engine(base.folder, kv_tokens=256)
    requests = [ask(str(i), (5 + i, 6, 7), new=120, temperature=2.0, seed=i) for i in range(16)]
    roomy.submit(requests)
    expected = {name: each.token_ids for name, each in finish(roomy).items()}
    assert sum(map(len, expected.values())) > 2 * 256
    narrow.submit(requests)
    answers: dict[str, tuple[int, ...]] = {}
    num_preempted = most_running = 0
    while len(answers) < len(requests):
        answers |= {each.sequence_id: each.token_ids for each in narrow.step()}
        num_running = narrow.view().num_running
        num_preempted += num_running + len(answers) < most_running
        most_running = max(most_running, num_running + len(answers))
    assert answers == expected
    assert num_preempted


def test_full_cache_cuts_an_answer_and_refuses_a_prompt(make_engine: MakeVllm, base: Reference) -> None:
    engine = make_engine(base.folder, kv_tokens=128)
    with pytest.raises(ValueError, match=r"KV cache .*128 tokens"):
        engine.submit([ask("a", (5,) * 128)])
    cut = answer(engine, ask("b", (5,) * 100, new=60))
    assert len(cut.token_ids) <= 28 and (cut.reason == "length") == (len(cut.token_ids) == 28)
    assert MAX_POSITIONS > 128


def test_demo_model_matches_torch(make_engine: MakeVllm) -> None:
    """The same draws from the same logits: only a draw within rounding of a boundary may differ."""
    prompts = [(20 + i, 30 + i, 40, 3) for i in range(40)]
    requests = [ask(str(i), prompt, new=40, temperature=1.0, seed=i) for i, prompt in enumerate(prompts)]
    outputs = []
    for engine in (make_engine(DEMO_FOLDER), TorchRolloutEngine(DEMO_FOLDER, max_batch=8, device="cpu")):
        engine.submit(requests)
        outputs.append(finish(engine))
    same = sum(outputs[0][name].token_ids == outputs[1][name].token_ids for name in outputs[0])
    assert same >= 0.9 * len(requests)


def test_weights_stay_in_the_precision_of_the_folder(make_engine: MakeVllm, tmp_path: Path) -> None:
    reference = make_model(tmp_path)
    reference.model.to(torch.bfloat16).save_pretrained(tmp_path)
    engine = make_engine(tmp_path)
    prompt = (5, 6, 7, 8)
    output = answer(engine, ask("a", prompt))
    assert output.logprobs == pytest.approx(reference.logprobs(prompt, output.token_ids, 1.0), abs=0.1)
    with pytest.raises(AssertionError):
        assert output.logprobs == pytest.approx(reference.logprobs(prompt, output.token_ids, 1.0), abs=1e-6)


def children() -> set[str]:
    return {pid for file in Path("/proc/self/task").glob("*/children") for pid in file.read_text().split()}


def test_engine_starts_no_process_and_pins_no_core(make_engine: MakeVllm, base: Reference) -> None:
    cores, before = os.sched_getaffinity(1), children()
    make_engine(base.folder, copy=2)
    assert children() == before
    assert os.sched_getaffinity(0) == cores
