"""One model on two workers: it matches one worker, holds half of the weights in each, and ends completely.

Each start runs two processes that import vLLM: all tests of a model share one engine, and the last kills a worker.
"""

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.fit.known_models import KNOWN_CONFIGS
from engine.inference.vllm import kv as vllm_kv
from engine.inference.vllm import weights as vllm_weights
from engine.inference.vllm.adapters import AdapterEngines
from engine.inference.vllm.core import EngineBroken
from engine.inference.vllm.engine import VllmRolloutEngine
from engine.inference.vllm.start import AdapterRoom
from engine.models.loading import load_decoder, model_tensors
from engine.models.make_random import make_random
from engine.policy.lineage import WeightsId
from engine.weights.open_file import OpenFile
from engine.weights.port import WeightVersion
from engine.weights.snapshot import map_weights, pack_weights
from tests.engine.inference.rollout_engine_builders import (
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
from tests.vllm.conftest import MakeVllm
from tests.vllm.two_workers import TwoWorkers, lend_folder

NUM_INSTALLS = 10
ADAPTERS = AdapterRoom(num=2, rank=8)
PROMPTS = ((5, 6, 7), tuple(5 + i % 40 for i in range(100)))
LONG = PROMPTS[1]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """A model with attention, dense layers, experts, and a tied head."""
    return make_model(tmp_path_factory.mktemp("mixture"), layout="qwen3_moe", tied=True)


@pytest.fixture(scope="module")
def workers(base: Reference) -> Iterator[TwoWorkers]:
    workers = TwoWorkers(base.folder, ADAPTERS)
    yield workers
    workers.engine.close()


@pytest.fixture
def engine(workers: TwoWorkers) -> VllmRolloutEngine:
    finish(workers.engine)
    return workers.engine


def answers_of(engine: VllmRolloutEngine) -> list[tuple[int, ...]]:
    return [answer(engine, ask("a", prompt)).token_ids for prompt in PROMPTS]


def expected(reference: Reference) -> list[tuple[int, ...]]:
    return [reference.greedy(prompt, 24) for prompt in PROMPTS]


def test_work_in_workers_signs_for_the_replica(workers: TwoWorkers, base: Reference) -> None:
    for work in (lambda: workers.engine.install(own_weights(base, version=0)), lambda: answers_of(workers.engine)):
        before = workers.signs.piece.serial
        work()
        assert workers.signs.piece.serial > before


def test_two_workers_match_one_and_transformers_on_ten_installs(
    engine: VllmRolloutEngine, make_engine: MakeVllm, base: Reference
) -> None:
    single, (changed_weights, changed) = make_engine(base.folder), perturbed(base, version=1)
    assert answers_of(engine) == answers_of(single) == expected(base) != expected(changed)
    for number in range(NUM_INSTALLS):
        weights, reference = (own_weights(base, version=2), base) if number % 2 else (changed_weights, changed)
        for each in (engine, single):
            each.install(weights)
        assert answers_of(engine) == answers_of(single) == expected(reference), f"install {number}"


def test_draws_are_those_of_one_worker(engine: VllmRolloutEngine, make_engine: MakeVllm, base: Reference) -> None:
    requests = [ask(str(i), (5 + i, 6, 7), temperature=1.0, seed=i, top_p=0.9) for i in range(12)]
    answers = []
    for each in (engine, make_engine(base.folder)):
        each.install(own_weights(base, version=3))
        each.submit(requests)
        answers.append({name: output.token_ids for name, output in finish(each).items()})
    assert answers[0] == answers[1]


def test_adapter_is_merged_before_shards_are_cut(
    engine: VllmRolloutEngine, make_engine: MakeVllm, base: Reference
) -> None:
    single, (weights, _) = make_engine(base.folder), adapted(base, version=4)
    for each in (engine, single):
        each.install(weights)
    assert answers_of(engine) == answers_of(single) != expected(base)
    engine.install(own_weights(base, version=5))
    assert answers_of(engine) == expected(base)


def test_weights_are_mapped_though_the_relay_has_dropped_them(
    engine: VllmRolloutEngine, base: Reference, tmp_path: Path
) -> None:
    weights, changed = perturbed(base, version=6)
    (tmp_path / "version").write_bytes(weights.buffer)
    served = OpenFile(os.open(tmp_path / "version", os.O_RDONLY))
    (tmp_path / "version").unlink()
    here = memoryview(bytearray(len(weights.buffer)))  # never read
    engine.install(WeightVersion(manifest=weights.manifest, buffer=here, file=served))
    assert answers_of(engine) == expected(changed)


def test_pages_move_to_two_workers_but_not_to_one(
    engine: VllmRolloutEngine, make_engine: MakeVllm, base: Reference
) -> None:
    engine.install(own_weights(base, version=7))
    engine.submit([ask("a", LONG, new=40)])
    step_until(engine, "a", 6)
    (moved,) = engine.export(["a"], leave=True, with_kv=True)
    assert moved.progress is not None and moved.progress.kv is not None
    engine.install(own_weights(base, version=7))  # forgets the prompt
    before = engine.view().num_prefilled
    assert answer(engine, moved).token_ids == base.greedy(LONG, 40)
    assert engine.view().num_prefilled - before <= 1
    single = make_engine(base.folder)
    single.install(own_weights(base, version=7))
    before = single.view().num_prefilled
    assert answer(single, moved).token_ids == base.greedy(LONG, 40)
    assert single.view().num_prefilled - before >= len(LONG) - 1


def test_pages_of_one_worker_are_not_the_others(engine: VllmRolloutEngine, base: Reference) -> None:
    """Shows that the move above depends on the order of pages."""
    engine.install(own_weights(base, version=7))
    engine.submit([ask("a", LONG, new=40)])
    step_until(engine, "a", 6)
    (moved,) = engine.export(["a"], leave=True, with_kv=True)
    assert moved.progress is not None and moved.progress.kv is not None
    kv, half = moved.progress.kv, len(moved.progress.kv.data) // 2
    swapped = replace(kv, data=bytes(kv.data[half:]) + bytes(kv.data[:half]))
    engine.install(own_weights(base, version=7))
    output = answer(engine, replace(moved, progress=replace(moved.progress, kv=swapped)))
    assert output.token_ids != base.greedy(LONG, 40)


def test_adapters_are_sharded_and_decode_in_parallel(engine: VllmRolloutEngine, base: Reference) -> None:
    """Adapters are cut like the matrices that they are added to."""
    engine.install(own_weights(base, version=8))

    engines = AdapterEngines(engine, base.folder, room=ADAPTERS, lend_folder=lend_folder)
    slots = [engines.make(), engines.make()]
    versions = [adapted(base, version=number) for number in (9, 10)]
    for slot, (version, _) in zip(slots, versions, strict=True):
        slot.install(version)
        slot.submit([ask(f"{version.version} {i}", prompt) for i, prompt in enumerate(PROMPTS)])
    outputs = finish(engine)
    for version, changed in versions:
        answers = [outputs[f"{version.version} {i}"].token_ids for i in range(len(PROMPTS))]
        assert answers == expected(changed) != expected(base)


def test_shared_memory_has_no_names_while_it_runs(workers: TwoWorkers) -> None:
    """So none stays behind, however workers and engine end."""
    assert len(workers.shared) > 4
    assert workers.names_in_shared_memory == []


def test_worker_killed_while_pages_load_ends_engine_at_once(workers: TwoWorkers, base: Reference) -> None:
    engine = workers.engine
    engine.submit([ask("a", LONG, new=40), ask("b", PROMPTS[0], new=40)])
    step_until(engine, "a", 6)
    (moved,) = engine.export(["a"], leave=True, with_kv=True)
    engine.submit([replace(moved, sequence_id="c", prompt_ids=moved.prompt_ids)])
    workers.rpc(_end_at, vllm_kv.__name__, "write_pages")
    assert_ends(workers, engine.step)


def _end_at(worker: Any, module: str, name: str) -> None:
    """Kills the second worker when it calls this function."""
    import importlib

    if worker.rank == 1:
        setattr(importlib.import_module(module), name, _killed)


def _killed(*args: object, **kwargs: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def assert_ends(workers: TwoWorkers, call: Any) -> None:
    with pytest.raises(EngineBroken, match="VllmWorker-1 ended"):
        call()
    assert not [pid for pid in workers.pids if Path(f"/proc/{pid}").exists()]
    for each in (call, workers.engine.view, lambda: workers.engine.export(["b"], leave=True, with_kv=True)):
        with pytest.raises(EngineBroken):
            each()
    assert workers.names_in_shared_memory == []


class Large:
    """A model so large that weights are most of the allocated memory."""

    def __init__(self, folder: Path) -> None:
        smaller = {"architectures": ["Qwen3ForCausalLM"], "num_hidden_layers": 3, "vocab_size": 8_192}
        make_random(folder, {**KNOWN_CONFIGS["Qwen3-0.6B"], **smaller})
        self.workers = TwoWorkers(folder)
        tensors = model_tensors(load_decoder(folder, device="cpu"))
        self.weights = pack_weights(tensors, weights=WeightsId(0, 1))
        norms = sum(tensor.nbytes for name, tensor in tensors.items() if "norm" in name)
        self.shard_bytes = (self.weights.manifest.num_bytes - norms) // 2 + norms


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Large]:
    large = Large(tmp_path_factory.mktemp("large"))
    yield large
    large.workers.engine.close()


def test_worker_holds_its_shard_and_takes_no_more_in_an_install(large: Large) -> None:
    large.workers.engine.install(large.weights)  # the first install allocates memory that stays
    large.workers.rpc(_note_memory, vllm_weights.__name__)
    large.workers.engine.install(large.weights)
    for held, growth in large.workers.rpc(_held_and_growth):
        assert 0.9 * large.shard_bytes <= held <= 1.1 * large.shard_bytes
        assert growth <= 1.1 * large.shard_bytes


def _note_memory(worker: Any, module: str) -> None:
    import importlib

    worker.noted = [_anonymous_bytes()]

    class Noted(dict[str, Any]):
        def items(self) -> Any:
            """At this point parameters are as in the files; later a CPU's kernels pack them."""
            parameters = worker.get_model().named_parameters()
            worker.held = sum(each.nbytes for name, each in parameters if not name.startswith("lm_head"))  # it is tied
            for item in super().items():
                yield item
                worker.noted.append(_anonymous_bytes())

    importlib.import_module(module).map_weights = lambda weights: Noted(map_weights(weights))  # type: ignore[attr-defined]


def _held_and_growth(worker: Any) -> tuple[int, int]:
    assert len(worker.noted) > 10
    return worker.held, max(worker.noted) - worker.noted[0]


def _anonymous_bytes() -> int:
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon")]
    return 1024 * int(line.split()[1])


def test_worker_killed_while_loading_ends_engine_at_once(large: Large) -> None:
    large.workers.rpc(_end_at, vllm_weights.__name__, "finalize_layerwise_reload")
    assert_ends(large.workers, lambda: large.workers.engine.install(large.weights))
