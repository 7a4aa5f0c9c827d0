"""Steps of few sizes at fixed addresses match steps of the exact size, and read nothing from the host in between.

What a GPU captures and plays is recorded and played here, operation by operation, on the very tensors of the record.
"""

from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from engine.inference.port import SequenceOutput, SequenceRequest
from engine.inference.rows.paged import PagedRows, rows_of_a_step
from engine.inference.torch_engine import TorchRolloutEngine
from engine.models.loading import model_tensors
from tests.engine.inference.rollout_engine_builders import Layout, Reference, ask, finish, make_model, perturbed

pytestmark = pytest.mark.usefixtures("one_thread")

LOGPROB_BOUND = 5e-5  # float32, other order of sums
_MODELS: dict[Layout, Reference] = {}


@pytest.fixture
def model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Layout], Reference]:
    def get(layout: Layout) -> Reference:
        if layout not in _MODELS:
            _MODELS[layout] = make_model(tmp_path_factory.mktemp("model"), layout=layout)
        return _MODELS[layout]

    return get


class Recording(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records every operation with its inputs and outputs. The host may not read a number."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert "_local_scalar_dense" not in str(func), "the host read a number"
        out = func(*args, **(kwargs or {}))
        self.operations.append((func, args, kwargs or {}, out))
        return out

    def play(self) -> None:
        for func, args, kwargs, out in self.operations:
            again = func(*args, **kwargs)
            pairs = zip(out, again, strict=True) if isinstance(out, tuple | list) else [(out, again)]
            for old, new in pairs:
                if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


class RecordedSteps:
    """Replaces Captures, with recordings instead of graphs."""

    def __init__(self) -> None:
        self.recordings: dict[Hashable, Recording] = {}
        self.num_played = 0
        self._where: Hashable = None

    def run(self, kind: Hashable, step: Callable[[], None], *, where: Hashable) -> None:
        if where != self._where:
            self.recordings.clear()
            self._where = where
        if kind in self.recordings:
            self.recordings[kind].play()
            self.num_played += 1
        else:
            with pytest.MonkeyPatch.context() as patch, Recording() as self.recordings[kind]:
                patch.setattr(torch.Tensor, "tolist", _refuse)
                step()


def _refuse(tensor: torch.Tensor) -> None:
    raise AssertionError("the host read numbers")


def engine_of(folder: Path, max_batch: int, **options: Any) -> TorchRolloutEngine:
    return TorchRolloutEngine(folder, max_batch=max_batch, device="cpu", layout="paged", **options)


def rows_of(engine: TorchRolloutEngine) -> PagedRows:
    assert isinstance(engine._rows, PagedRows)
    return engine._rows


def recorded(engine: TorchRolloutEngine) -> RecordedSteps:
    steps = RecordedSteps()
    rows_of(engine)._captures = steps  # type: ignore[assignment]
    return steps


def asks() -> list[SequenceRequest]:
    """Greedy, drawn and cut requests of many lengths."""
    drawn = [ask(f"{i}", (4 + i,) * (1 + 9 * i), temperature=0.5 + i / 7, new=5 + 11 * i, seed=i) for i in range(7)]
    cut = [ask(f"cut {i}", (9, 8), temperature=1.0, new=30, seed=i, top_k=9, top_p=0.9) for i in range(3)]
    return [*drawn, *cut, ask("greedy", (5, 6, 7), new=50)]


def assert_same(found: dict[str, SequenceOutput], expected: dict[str, SequenceOutput]) -> None:
    for name, output in expected.items():
        assert (found[name].token_ids, found[name].versions) == (output.token_ids, output.versions), name
        assert found[name].logprobs == pytest.approx(output.logprobs, abs=LOGPROB_BOUND)
        assert found[name].routes == output.routes


def run(engine: TorchRolloutEngine, requests: list[SequenceRequest]) -> dict[str, SequenceOutput]:
    engine.submit(requests)
    return finish(engine)


def test_a_step_is_as_large_as_the_next_power_of_two_or_all_rows() -> None:
    assert [rows_of_a_step(num, 12) for num in (1, 2, 3, 5, 8, 9, 12)] == [1, 2, 4, 8, 8, 12, 12]


@pytest.mark.long_except("3-qwen3", "5-qwen3", "16-qwen3")
@pytest.mark.parametrize("layout", ["qwen3", "qwen3_moe"])
@pytest.mark.parametrize("max_batch", [1, 3, 5, 16])
def test_tokens_do_not_depend_on_the_size_of_the_step(
    model: Callable[[Layout], Reference], layout: Layout, max_batch: int
) -> None:
    folder = model(layout).folder
    windowed = TorchRolloutEngine(folder, max_batch=16, device="cpu", layout="window")
    assert_same(run(engine_of(folder, max_batch), asks()), run(windowed, asks()))


def test_replayed_steps_match_eager_steps(model: Callable[[Layout], Reference]) -> None:
    """Rows join and leave, tables and the cache grow."""
    folder = model("qwen3").folder
    engine = engine_of(folder, 4)
    steps = recorded(engine)
    found = run(engine, asks())
    assert steps.num_played > 50
    assert_same(found, run(engine_of(folder, 4), asks()))


def test_replayed_steps_use_the_weights_installed_last(
    model: Callable[[Layout], Reference],
) -> None:
    base = model("llama")
    weights, changed = perturbed(base, version=1)
    engine = engine_of(base.folder, 2)
    steps = recorded(engine)
    assert run(engine, [ask("a", (5, 6, 7))])["a"].token_ids == base.greedy((5, 6, 7), 24)
    where = {name: tensor.data_ptr() for name, tensor in model_tensors(engine._model).items()}
    engine.install(weights)
    assert {name: tensor.data_ptr() for name, tensor in model_tensors(engine._model).items()} == where
    before = steps.num_played
    assert run(engine, [ask("a", (5, 6, 7))])["a"].token_ids == changed.greedy((5, 6, 7), 24)
    assert steps.num_played > before + 20


def test_step_with_unchanged_rows_reads_nothing_from_the_host(
    model: Callable[[Layout], Reference],
) -> None:
    """Overwrites the host's copies, while no row joins, leaves or gets a block."""
    folder = model("llama").folder
    candidates = [ask(str(i), (5 + i,), temperature=1.0, new=14, seed=i) for i in range(20)]
    whole = run(engine_of(folder, 4), candidates)
    requests = [each for each in candidates if whole[each.sequence_id].reason == "length"][:3]
    engine = engine_of(folder, 4)
    engine.submit(requests)
    engine.step()
    state = rows_of(engine)._state
    for mirror in (state._host_numbers, state._host_shares, state._host_blocks_RM):
        mirror.fill_(-7)
    for _ in range(12):
        assert not engine.step()
    tokens = {each.sequence_id: each.token_ids for each in engine.abort([each.sequence_id for each in candidates])}
    assert len(tokens) == 3 and all(tokens[name] == whole[name].token_ids[:13] for name in tokens)


def test_unused_rows_write_to_the_scratch_block(model: Callable[[Layout], Reference]) -> None:
    """With a model that has biases, as the keys of a padding token are zeros otherwise."""
    engine = engine_of(model("qwen2").folder, 8, kv_tokens=8 * 16)
    engine.submit([ask(str(i), (5 + i,) * 17, new=8) for i in range(3)])  # a step of four rows
    engine.step()
    blocks = {block for live in engine._scheduler.rows for block in live.table.blocks}
    kv_N2XKE = engine._store._kv_N2XKE
    kv_N2BPKE = kv_N2XKE.view(*kv_N2XKE.shape[:2], -1, 16, *kv_N2XKE.shape[3:])
    touched = {block for block in range(kv_N2BPKE.shape[2]) if kv_N2BPKE[:, :, block].any()}
    assert kv_N2BPKE.shape[2] == 9 and touched == blocks | {8}


def test_mixture_that_syncs_with_the_host_is_not_captured(model: Callable[[Layout], Reference]) -> None:
    """In float32 each expert has a product of its own, whose size is the number of its tokens."""
    engine = engine_of(model("qwen3_moe").folder, 2)
    recorded(engine)
    with pytest.raises(AssertionError, match="the host read"):
        run(engine, [ask("a", (5, 6, 7))])
