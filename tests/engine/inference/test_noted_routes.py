"""Rollouts of a mixture record the experts of each token: replayed, they give the engine's own log-probs."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
import torch
from torch import Tensor

from engine.inference.port import SequenceOutput, SequenceProgress, SequenceRequest
from engine.inference.torch_engine import TorchRolloutEngine
from engine.models.attention import PackedAttention
from engine.models.decoder import Decoder, token_logprobs
from engine.models.loading import load_decoder, model_tensors
from engine.models.mixture import Choose, Router, freely
from engine.models.packing import lay_out, pack
from engine.models.routes import Replayed, RouteFormat
from engine.weights.snapshot import map_weights
from tests.engine.inference.rollout_engine_builders import Reference, ask, finish, make_model, perturbed

Rows = Literal["window", "paged"]
EVERY: tuple[Rows, ...] = ("window", "paged")
PROMPT = tuple(range(4, 44))  # two blocks and a half
LOGPROB_BOUND = 1e-4  # for log-probs down to -20, with sums in another order

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return make_model(tmp_path_factory.mktemp("mixture"), layout="qwen3_moe")


def engine_of(folder: Path, rows: Rows = "window", *, max_batch: int = 4, kv_tokens: int = 0) -> TorchRolloutEngine:
    return TorchRolloutEngine(
        folder, max_batch=max_batch, device="cpu", layout=rows, kv_tokens=kv_tokens, prefill_tokens=24
    )


def asks(num: int, prompt: Sequence[int] = PROMPT, new: int = 12) -> list[SequenceRequest]:
    return [ask(str(seed), prompt, temperature=1.0, new=new + seed, seed=seed) for seed in range(num)]


def forward(model: Decoder, ids: Sequence[int], choose: Choose) -> Tensor:
    tokens = pack([ids], lay_out([len(ids)], max_tokens=999), "cpu")
    with torch.no_grad():
        return model.logits(model(tokens.ids_T, tokens.positions_T, PackedAttention(tokens), choose))


def own_routes(model: Decoder, ids: Sequence[int]) -> bytes:
    """The experts that these weights choose for whole sequences."""
    noted: list[Tensor] = []

    def note(mixture: int, logits_TX: Tensor, k: int) -> Tensor:
        noted.append(freely(mixture, logits_TX, k))
        return noted[-1]

    forward(model, ids, note)
    return RouteFormat.of(model.config.mixture).packed(torch.stack(noted, dim=1))


def assert_all_noted(folder: Path, prompt: Sequence[int], output: SequenceOutput) -> None:
    """Routes exist for all tokens but the last, which was never read, and reproduce the log-probs."""
    model = load_decoder(folder, device="cpu")
    layout, ids = RouteFormat.of(model.config.mixture), (*prompt, *output.token_ids)
    routes_TWk = layout.opened(output.routes)
    assert len(routes_TWk) == len(ids) - 1
    assert output.routes == own_routes(model, ids[:-1])
    logits_TV = forward(model, ids[:-1], Replayed(routes_TWk))[len(prompt) - 1 :]
    logprobs_N, _ = token_logprobs(logits_TV, torch.tensor(output.token_ids), 1.0)
    assert output.logprobs == pytest.approx(logprobs_N.tolist(), abs=LOGPROB_BOUND)


@pytest.mark.parametrize("rows", EVERY)
def test_replayed_routes_give_the_engines_log_probs(theirs: Reference, rows: Rows) -> None:
    """More samples than rows share their prompt's blocks, so another sample computes most of its tokens."""
    engine = engine_of(theirs.folder, rows)
    engine.submit(asks(9))
    outputs = finish(engine)
    assert engine.view().num_prefilled < 3 * len(PROMPT)
    for output in outputs.values():
        assert_all_noted(theirs.folder, PROMPT, output)


def test_without_routes_other_experts_may_be_chosen(theirs: Reference) -> None:
    """Different routers in the trainer make the case certain."""
    engine = engine_of(theirs.folder)
    engine.submit(asks(1))
    output = finish(engine)["0"]
    model = load_decoder(theirs.folder, device="cpu")
    for module in model.modules():
        if isinstance(module, Router):
            module.weight_XD.data.neg_()
    ids = (*PROMPT, *output.token_ids)[:-1]
    noted = RouteFormat.of(model.config.mixture).opened(output.routes)
    free, replayed = (forward(model, ids, choose)[len(PROMPT) - 1 :] for choose in (freely, Replayed(noted)))
    assert own_routes(model, ids) != output.routes
    assert (free - replayed).abs().max() > 0.1


@pytest.mark.parametrize("rows", EVERY)
def test_later_turn_has_the_routes_of_cached_tokens(theirs: Reference, rows: Rows) -> None:
    engine = engine_of(theirs.folder, rows)
    engine.submit(asks(1, new=20))
    first = finish(engine)["0"]
    later = (*PROMPT, *first.token_ids, 9, 8, 7)
    before = engine.view().num_prefilled
    engine.submit([ask("later", later, temperature=1.0, new=5)])
    second = finish(engine)["later"]
    assert engine.view().num_prefilled - before < 20
    assert_all_noted(theirs.folder, later, second)


@pytest.mark.parametrize("rows", EVERY)
def test_scarce_memory_loses_no_route(theirs: Reference, rows: Rows) -> None:
    """Sequences are preempted in the middle and computed again."""
    engine = engine_of(theirs.folder, rows, max_batch=6, kv_tokens=12 * 16)
    preempted = count_preempted(engine)
    engine.submit([ask(str(i), (4 + i, 5, 6), temperature=1.0, new=60, seed=i) for i in range(6)])
    outputs = finish(engine)
    assert preempted
    for i in range(6):
        assert_all_noted(theirs.folder, (4 + i, 5, 6), outputs[str(i)])


def count_preempted(engine: TorchRolloutEngine) -> list[str]:
    preempted: list[str] = []
    schedule = engine._scheduler.schedule

    def counting() -> object:
        plan = schedule()
        preempted.extend(each.live.sequence_id for each in plan.preempted)
        return plan

    engine._scheduler.schedule = counting  # type: ignore[assignment, method-assign]
    return preempted


@pytest.mark.parametrize("with_kv", [True, False])
@pytest.mark.parametrize("steps", [1, 2, 9])
def test_routes_move_with_a_sequence_with_or_without_cache(theirs: Reference, with_kv: bool, steps: int) -> None:
    """Also for a half-prefilled prompt. A sequence that shares imported pages has their routes too."""
    source, host = engine_of(theirs.folder), engine_of(theirs.folder, "paged")
    source.submit(asks(2))
    for _ in range(steps):
        source.step()
    moved = source.export(["0", "1"], leave=True, with_kv=with_kv)
    host.submit([*moved, ask("later", PROMPT, temperature=1.0, seed=9)])
    outputs = finish(host)
    for name in ("0", "1", "later"):
        assert_all_noted(theirs.folder, PROMPT, outputs[name])


def test_recomputed_token_keeps_its_first_route(theirs: Reference) -> None:
    """Its log-prob came from that route: the sequence is moved without its cache and read by newer weights."""
    weights, _ = perturbed(theirs, version=1)
    source, host = engine_of(theirs.folder), engine_of(theirs.folder)
    source.submit(asks(1))
    for _ in range(6):
        source.step()
    (moved,) = source.export(["0"], leave=True, with_kv=False)
    host.install(weights)
    host.submit([moved])
    output = finish(host)["0"]
    assert moved.progress is not None
    num_old = len(PROMPT) + len(moved.progress.token_ids) - 1
    old, new = load_decoder(theirs.folder, device="cpu"), load_decoder(theirs.folder, device="cpu")
    for name, tensor in model_tensors(new).items():
        tensor.copy_(map_weights(weights)[name])
    ids, size = (*PROMPT, *output.token_ids)[:-1], RouteFormat.of(old.config.mixture).token_bytes
    by_old, by_new = own_routes(old, ids), own_routes(new, ids)
    assert output.routes[: num_old * size] == by_old[: num_old * size] != by_new[: num_old * size]
    assert output.routes[num_old * size :] == by_new[num_old * size :]


def test_pages_without_routes_are_marked_unknown(theirs: Reference) -> None:
    """Pages from an engine that records no routes. Tokens computed here have routes again."""
    source, host = engine_of(theirs.folder), engine_of(theirs.folder)
    source.submit(asks(1))
    for _ in range(6):
        source.step()
    (moved,) = source.export(["0"], leave=True, with_kv=True)
    assert moved.progress is not None and moved.progress.kv is not None
    host.submit([replace(moved, progress=replace(moved.progress, routes=b""))])
    output = finish(host)["0"]
    layout = RouteFormat.of(load_decoder(theirs.folder, device="cpu").config.mixture)
    is_known_T = layout.opened(output.routes)[:, 0, 0] != layout.unknown
    num_brought = moved.progress.kv.num_tokens
    assert not is_known_T[:num_brought].any() and is_known_T[num_brought:].all()


def test_aborted_sequence_has_routes_and_dense_model_none(theirs: Reference, tmp_path: Path) -> None:
    engine = engine_of(theirs.folder)
    engine.submit(asks(1))
    for _ in range(6):
        engine.step()
    (output,) = engine.abort(["0"])
    assert_all_noted(theirs.folder, PROMPT, output)
    dense = engine_of(make_model(tmp_path, layout="qwen3").folder)
    dense.submit(asks(2))
    assert {output.routes for output in finish(dense).values()} == {b""}


@pytest.mark.parametrize("num_bytes", [1, 2 * 100])
def test_routes_that_are_not_of_these_tokens_are_refused(theirs: Reference, num_bytes: int) -> None:
    begun = SequenceProgress(token_ids=(5,), logprobs=(-1.0,), versions=(0,), routes=bytes(num_bytes))
    with pytest.raises(ValueError, match=f"routes of at most 41 tokens, 2 bytes each; got {num_bytes} bytes"):
        engine_of(theirs.folder).submit([replace(asks(1)[0], progress=begun)])
