"""Properties of the torch engine beyond the port's (engine conformance): shared prefixes, bounded chunks, scarce
memory, moved caches, and the layouts of Llama, Qwen2 and Qwen3."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from engine.inference.port import SequenceOutput, SequenceProgress, SequenceRequest
from engine.inference.requests import TooLong
from engine.inference.rows import bands
from engine.inference.torch_engine import TorchRolloutEngine
from engine.models.attention import PackedAttention
from engine.models.decoder import token_logprobs
from engine.models.loading import load_decoder
from engine.models.packing import lay_out, pack
from tests.engine.inference.rollout_engine_builders import (
    Layout,
    Reference,
    adapted,
    answer,
    ask,
    finish,
    make_model,
    own_weights,
    perturbed,
    step_until,
)
from tests.engine.products import in_pairs

pytestmark = pytest.mark.usefixtures("one_thread")

PROMPTS = [(5, 6, 7), (8,), tuple(range(9, 50)), (4, 30, 31, 12), (11, 12), (20,) * 19]
LOGPROB_BOUND = 5e-5  # float32 sums in another order: rollout decodes token by token, the trainer whole sequences
MOVED_BOUND = 1e-5

GetModel = Callable[..., Reference]
_MODELS: dict[tuple[object, ...], Reference] = {}


@pytest.fixture
def model(tmp_path_factory: pytest.TempPathFactory) -> GetModel:
    def get(layout: Layout = "llama", *, tied: bool = False, kv_heads: int = 2) -> Reference:
        key = (layout, tied, kv_heads)
        if key not in _MODELS:
            _MODELS[key] = make_model(tmp_path_factory.mktemp("model"), layout=layout, tied=tied, kv_heads=kv_heads)
        return _MODELS[key]

    return get


def engine_of(folder: Path, max_batch: int = 8, **options: Any) -> TorchRolloutEngine:
    return TorchRolloutEngine(folder, max_batch=max_batch, device="cpu", **options)


def sampled(count: int, prompt: tuple[int, ...], **options: Any) -> list[SequenceRequest]:
    return [ask(str(i), prompt, temperature=1.0, seed=i, **options) for i in range(count)]


# Tokens --------------------------------------------------------------------------------------------------------------


@pytest.mark.long_except(
    "llama-False-1-paged",
    "llama-True-4-paged",
    "llama3-False-2-paged",
    "yarn-False-2-paged",
    "qwen2-True-1-paged",
    "qwen3-False-4-paged",
)
@pytest.mark.parametrize("rows", ["window", "paged"])
@pytest.mark.parametrize(
    ("layout", "tied", "kv_heads"),
    [
        ("llama", False, 1),
        ("llama", True, 4),
        ("llama3", False, 2),
        ("yarn", False, 2),
        ("qwen2", False, 2),
        ("qwen2", True, 1),
        ("qwen3", False, 4),
        ("qwen3", True, 2),
        ("qwen3_moe", False, 2),
    ],
)
def test_greedy_output_is_that_of_transformers(
    model: GetModel, layout: Layout, tied: bool, kv_heads: int, rows: Literal["window", "paged"]
) -> None:
    theirs = model(layout, tied=tied, kv_heads=kv_heads)
    engine = engine_of(theirs.folder, max_batch=4, layout=rows)  # fewer rows than prompts: rows are reused
    for installed in (None, 1):
        if installed:
            weights, theirs = perturbed(theirs, version=installed)
            engine.install(weights)
        engine.submit([ask(str(i), prompt, new=40) for i, prompt in enumerate(PROMPTS)])
        outputs = finish(engine)
        for i, prompt in enumerate(PROMPTS):
            assert outputs[str(i)].token_ids == theirs.greedy(prompt, 40)


def test_log_probs_agree_with_the_trainers_forward(model: GetModel) -> None:
    folder, temperature = model("qwen3").folder, 0.8
    engine = engine_of(folder, max_batch=3)
    engine.submit([ask(str(i), prompt, temperature=temperature, seed=i) for i, prompt in enumerate(PROMPTS)])
    outputs = finish(engine)
    trained = load_decoder(folder, device="cpu")
    for i, prompt in enumerate(PROMPTS):
        response = outputs[str(i)].token_ids
        packed = pack([prompt + response], lay_out([len(prompt) + len(response)], max_tokens=999), "cpu")
        with torch.no_grad():
            hidden_TD = trained(packed.ids_T, packed.positions_T, PackedAttention(packed))
            logits_NV = trained.logits(hidden_TD[len(prompt) - 1 : -1])
        logprobs_N, _ = token_logprobs(logits_NV, torch.tensor(response), temperature)
        assert outputs[str(i)].logprobs == pytest.approx(logprobs_N.tolist(), abs=LOGPROB_BOUND)


@pytest.mark.long
def test_short_and_long_answers_in_a_batch_match_those_alone(model: GetModel) -> None:
    """Rows join and leave at every length while the window moves and grows."""
    folder = model().folder
    requests = [ask(str(i), PROMPTS[i % 6], temperature=1.0, new=200 if i % 9 == 0 else 3, seed=i) for i in range(40)]
    by_rows: list[dict[str, SequenceOutput]] = []
    for max_batch, rows in ((1, "paged"), (3, "window"), (24, "window"), (24, "paged")):
        engine = engine_of(folder, max_batch, layout=rows)
        engine.submit(requests)
        by_rows.append(finish(engine))
    alone = by_rows[0]
    assert max(len(each.token_ids) for each in alone.values()) > 130
    for others in by_rows[1:]:
        for name, output in others.items():
            assert output.token_ids == alone[name].token_ids
            assert output.logprobs == pytest.approx(alone[name].logprobs, abs=LOGPROB_BOUND)


@pytest.mark.parametrize("worth_bytes", [0, bands.WORTH_BYTES, 2**60])
def test_rows_that_outgrow_their_band_match_those_alone(
    model: GetModel, worth_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = model().folder
    lengths = (2, 70, 5, 30, 11)
    requests = [ask(str(i), PROMPTS[i % 6], temperature=1.0, new=lengths[i % 5], seed=i) for i in range(30)]
    alone = engine_of(folder, 1, layout="paged")
    alone.submit(requests)
    expected = finish(alone)
    monkeypatch.setattr(bands, "LONGEST", (4, 16))
    monkeypatch.setattr(bands, "WORTH_BYTES", worth_bytes)
    engine = engine_of(folder, 12)
    engine.submit(requests)
    for name, output in finish(engine).items():
        assert output.token_ids == expected[name].token_ids
        assert output.logprobs == pytest.approx(expected[name].logprobs, abs=LOGPROB_BOUND)


def test_rows_without_cuts_draw_the_same_next_to_one_with_cuts(model: GetModel) -> None:
    folder = model().folder
    engine = engine_of(folder)
    engine.submit([*sampled(4, PROMPTS[0]), ask("cut", PROMPTS[0], temperature=1.0, top_p=0.5), ask("greedy", (9,))])
    outputs = finish(engine)
    for request in sampled(4, PROMPTS[0]):
        assert answer(engine, request).token_ids == outputs[request.sequence_id].token_ids


def test_a_seed_of_any_size_is_accepted(model: GetModel) -> None:
    engine = engine_of(model().folder)
    big = answer(engine, ask("a", PROMPTS[0], temperature=1.0, seed=2**64 - 1))
    assert big.token_ids == answer(engine, ask("a", PROMPTS[0], temperature=1.0, seed=-1)).token_ids


def test_nan_weights_leave_no_trace_after_good_weights(model: GetModel) -> None:
    base = model()
    weights, _ = perturbed(base, version=1)
    broken = replace(weights, buffer=memoryview(b"\xff" * len(weights.buffer)))
    engine = engine_of(base.folder)
    engine.install(broken)
    engine.submit([ask(str(i), prompt) for i, prompt in enumerate(PROMPTS)])
    step_until(engine, "2", 3)
    engine.abort([str(i) for i in range(6)])
    engine.install(own_weights(base, version=2))
    engine.submit([ask(str(i), prompt) for i, prompt in enumerate(PROMPTS)])
    outputs = finish(engine)
    for i, prompt in enumerate(PROMPTS):
        assert outputs[str(i)].token_ids == base.greedy(prompt, 24)


# Shared prefixes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", ["window", "paged"])
def test_samples_of_one_prompt_compute_and_hold_it_once(model: GetModel, rows: Literal["window", "paged"]) -> None:
    folder, prompt = model().folder, tuple(range(4, 60))  # 55 tokens to prefill, of which 48 fill three blocks
    engine = engine_of(folder, layout=rows)
    engine.submit(sampled(8, prompt))
    engine.step()
    assert engine.view().num_prefilled == 55
    assert engine.view().kv_used * engine._blocks.num_blocks == 3 + 8
    outputs = finish(engine)
    for request in sampled(8, prompt):
        assert outputs[request.sequence_id].token_ids == answer(engine_of(folder), request).token_ids


@pytest.mark.parametrize("rows", ["window", "paged"])
def test_a_later_turn_computes_only_what_is_new(model: GetModel, rows: Literal["window", "paged"]) -> None:
    base = model()
    engine = engine_of(base.folder, layout=rows)
    first = answer(engine, ask("a", PROMPTS[2], new=24))
    turn = (*PROMPTS[2], *first.token_ids, 30, 31, 32, 33, 34)
    before = engine.view().num_prefilled
    second = answer(engine, ask("a", turn, new=24))
    in_blocks = (len(PROMPTS[2]) + len(first.token_ids) - 1) // 16 * 16
    assert engine.view().num_prefilled - before == len(turn) - 1 - in_blocks
    assert second.token_ids == base.greedy(turn, 24)


def test_every_prompt_is_recomputed_after_new_weights(model: GetModel) -> None:
    base = model()
    weights, changed = perturbed(base, version=1)
    engine = engine_of(base.folder)
    engine.submit([ask("a", PROMPTS[2]), ask("b", PROMPTS[2])])
    step_until(engine, "a", 4)
    engine.install(weights)
    before = engine.view().num_prefilled
    engine.submit(
        [ask("new", PROMPTS[2])]
    )  # the same prompt as running sequences, which keep their old keys and values
    assert finish(engine)["new"].token_ids == changed.greedy(PROMPTS[2], 24)
    assert engine.view().num_prefilled - before == len(PROMPTS[2]) - 1


# Long prompts and scarce memory --------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", ["window", "paged"])
def test_long_prompt_is_prefilled_in_chunks_while_others_decode(
    model: GetModel, rows: Literal["window", "paged"]
) -> None:
    base = model()
    engine = engine_of(base.folder, layout=rows, prefill_tokens=16)
    long = tuple(4 + i % 60 for i in range(150))
    engine.submit([ask("runs", PROMPTS[3], new=40)])
    engine.step()
    engine.submit([ask("long", long)])
    num_steps = 0
    while engine.export(["long"], leave=False, with_kv=False)[0].progress is None:
        before, num_steps = engine.view(), num_steps + 1
        engine.step()
        assert engine.view().num_prefilled - before.num_prefilled <= 16
        assert engine.view().num_decoded > before.num_decoded
    assert num_steps == 10
    outputs = finish(engine)
    assert outputs["runs"].token_ids == base.greedy(PROMPTS[3], 40)
    assert outputs["long"].token_ids == base.greedy(long, 24)


@pytest.mark.parametrize("rows", ["window", "paged"])
def test_answers_are_the_same_when_memory_is_scarce(model: GetModel, rows: Literal["window", "paged"]) -> None:
    folder = model().folder
    requests = [ask(str(i), PROMPTS[i % 6], temperature=1.0, new=60, seed=i) for i in range(24)]
    ample, scarce = engine_of(folder), engine_of(folder, kv_tokens=160, layout=rows)
    for engine in (ample, scarce):
        engine.submit(requests)
    expected = finish(ample)
    for name, output in finish(scarce).items():
        assert output.token_ids == expected[name].token_ids
        assert output.logprobs == pytest.approx(expected[name].logprobs, abs=LOGPROB_BOUND)
        assert output.reason == expected[name].reason
    assert scarce.view().num_prefilled > ample.view().num_prefilled  # some were preempted and computed again
    assert scarce.view().kv_used == 0.0


def test_full_cache_cuts_an_answer_and_refuses_a_prompt(model: GetModel) -> None:
    folder = model().folder
    engine, long = engine_of(folder, kv_tokens=64), ask("a", (5,) * 40, new=60)
    whole, cut = answer(engine_of(folder), long), answer(engine, long)
    assert len(whole.token_ids) > 24
    assert (cut.token_ids, cut.reason) == (whole.token_ids[:24], "length")
    with pytest.raises(TooLong, match=r"KV cache \(kv_tokens\), which holds 64 tokens; got 64"):
        engine.submit([ask("b", (5,) * 64)])
    begun = SequenceProgress(token_ids=(5,) * 24, logprobs=(0.0,) * 24, versions=(0,) * 24)
    with pytest.raises(TooLong, match="got 64"):
        engine.submit([replace(long, progress=begun)])


def test_unused_memory_is_not_allocated(model: GetModel) -> None:
    engine = engine_of(model().folder, max_batch=64)
    for turn in range(20):
        engine.submit(sampled(4, (turn + 4, 5, 6)))
        finish(engine)
    assert engine._blocks.num_backed * 16 < 64 * 256 / 3


# Moves ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "temperature", "with_kv"), in_pairs(["window", "paged"], [0.0, 1.0], [True, False]))
def test_group_moved_in_the_middle_gives_the_same_answers(
    model: GetModel, temperature: float, with_kv: bool, rows: Literal["window", "paged"]
) -> None:
    base = model()
    requests = [ask(str(i), PROMPTS[2], temperature=temperature, seed=i, new=40) for i in range(6)]
    stayed, first, second = (engine_of(base.folder, layout=rows) for _ in range(3))
    for engine in (stayed, first):
        engine.submit(requests)
    expected = finish(stayed)
    outputs: dict[str, SequenceOutput] = {}
    for _ in range(9):
        outputs |= {each.sequence_id: each for each in first.step()}
    second.submit(first.export([each.sequence_id for each in requests], leave=True, with_kv=with_kv))
    assert (first.view().num_running, first.view().kv_used) == (0, 0.0)
    outputs |= finish(second)
    assert (second.view().num_prefilled == 0) == with_kv
    for name, whole in expected.items():
        assert (outputs[name].token_ids, outputs[name].versions) == (whole.token_ids, whole.versions)
        assert outputs[name].logprobs == pytest.approx(whole.logprobs, abs=MOVED_BOUND)


def test_imported_pages_can_be_shared(model: GetModel) -> None:
    base = model()
    first, second = engine_of(base.folder), engine_of(base.folder)
    first.submit([ask("a", PROMPTS[2])])
    step_until(first, "a", 3)
    second.submit(first.export(["a"], leave=True, with_kv=True))
    step_until(second, "a", 4)
    second.submit([ask("b", PROMPTS[2])])
    outputs = finish(second)
    assert second.view().num_prefilled == (len(PROMPTS[2]) - 1) % 16
    assert outputs["b"].token_ids == base.greedy(PROMPTS[2], 24)


def test_a_cache_of_two_versions_moves_but_is_not_shared(model: GetModel) -> None:
    base = model()
    weights, changed = perturbed(base, version=1)
    stayed, first, second = (engine_of(base.folder) for _ in range(3))
    for engine in (stayed, first):
        engine.submit([ask("a", PROMPTS[2])])
        step_until(engine, "a", 3)
        engine.install(weights)
    second.install(weights)
    expected = finish(stayed)["a"]
    step_until(first, "a", 5)
    second.submit(first.export(["a"], leave=True, with_kv=True))
    step_until(second, "a", 6)
    second.submit([ask("b", PROMPTS[2])])
    outputs = finish(second)
    assert (outputs["a"].token_ids, outputs["a"].versions) == (expected.token_ids, expected.versions)
    assert outputs["b"].token_ids == changed.greedy(PROMPTS[2], 24)


@pytest.mark.parametrize("change", [{"layout": "another engine's"}, {"version": 5}])
def test_pages_of_another_layout_or_version_are_recomputed(model: GetModel, change: dict[str, Any]) -> None:
    base = model()
    first, second = engine_of(base.folder), engine_of(base.folder)
    first.submit([ask("a", PROMPTS[2])])
    num_tokens = step_until(first, "a", 3)
    (moved,) = first.export(["a"], leave=True, with_kv=True)
    assert moved.progress is not None and moved.progress.kv is not None
    pages = replace(moved.progress.kv, **change, data=memoryview(b"nothing of use"))
    second.submit([replace(moved, progress=replace(moved.progress, kv=pages))])
    assert finish(second)["a"].token_ids == base.greedy(PROMPTS[2], 24)
    assert second.view().num_prefilled == len(PROMPTS[2]) + num_tokens - 1


def test_torn_pages_are_refused(model: GetModel) -> None:
    engine = engine_of(model().folder)
    engine.submit([ask("a", PROMPTS[2])])
    engine.step()
    (moved,) = engine.export(["a"], leave=True, with_kv=True)
    assert moved.progress is not None and moved.progress.kv is not None
    pages = replace(moved.progress.kv, data=moved.progress.kv.data[:-4])
    with pytest.raises(ValueError, match="torn"):
        engine.submit([replace(moved, progress=replace(moved.progress, kv=pages))])
    assert not engine.view().num_waiting


def test_new_weights_drop_pages_not_yet_imported(model: GetModel) -> None:
    base = model()
    weights, changed = perturbed(base, version=1)
    first, second = engine_of(base.folder), engine_of(base.folder)
    first.submit([ask("a", PROMPTS[2])])
    first.step()
    (moved,) = first.export(["a"], leave=True, with_kv=True)
    second.submit([moved])
    second.install(weights)
    output = finish(second)["a"]
    assert moved.progress is not None
    first_token = moved.progress.token_ids
    assert output.token_ids == first_token + changed.greedy((*PROMPTS[2], *first_token), 23)


def test_half_prefilled_prompt_moves_with_its_pages(model: GetModel) -> None:
    base = model()
    first, second = engine_of(base.folder, prefill_tokens=16), engine_of(base.folder)
    first.submit([ask("a", PROMPTS[2])])
    first.step()
    (moved,) = first.export(["a"], leave=True, with_kv=True)
    assert moved.progress is not None and moved.progress.token_ids == ()
    second.submit([moved])
    assert finish(second)["a"].token_ids == base.greedy(PROMPTS[2], 24)
    assert second.view().num_prefilled == len(PROMPTS[2]) - 1 - 16


def test_stop_string_across_a_move_is_found(model: GetModel) -> None:
    base = model()
    first, second = engine_of(base.folder), engine_of(base.folder)
    whole = base.greedy(PROMPTS[2], 24)
    text = base.text(whole)
    stop = text[7:12]  # from within the fourth token to the end of the sixth
    assert text.index(stop) == 7
    first.submit([ask("a", PROMPTS[2], stop=(stop,))])
    assert step_until(first, "a", 5) == 5
    second.submit(first.export(["a"], leave=True, with_kv=True))
    assert finish(second)["a"].token_ids == whole[:6]


def test_empty_engine_refuses_requests_until_its_first_version(
    model: GetModel,
) -> None:
    base = model()
    empty = engine_of(base.folder, begins_empty=True)
    with pytest.raises(RuntimeError, match="a version must be installed"):
        empty.submit([ask("a", PROMPTS[0])])
    empty.install(own_weights(base, version=0))
    assert answer(empty, ask("a", PROMPTS[0], new=12)).token_ids == base.greedy(PROMPTS[0], 12)


def test_an_adapter_is_a_version_of_an_empty_engine_too(model: GetModel) -> None:
    """The engine then reads the base to which the adapter is added."""
    base = model()
    weights, merged = adapted(base, version=1)
    empty = engine_of(base.folder, begins_empty=True)
    empty.install(weights)
    output = answer(empty, ask("a", PROMPTS[0], new=12))
    assert output.token_ids == merged.greedy(PROMPTS[0], 12)
    assert output.logprobs == pytest.approx(merged.logprobs(PROMPTS[0], output.token_ids, 1.0), abs=LOGPROB_BOUND)
