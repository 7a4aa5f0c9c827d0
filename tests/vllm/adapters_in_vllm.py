"""Adapters as versions: each slot matches `transformers` with its version merged, whatever else is in the batch.

All but the last tests share one engine; every other engine costs about a second.
"""

import copy
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, get_args

import pytest
import torch
from vllm.config.lora import MaxLoRARanks

from engine.inference.port import SequenceOutput
from engine.inference.vllm.adapters import AdapterEngine, AdapterEngines
from engine.inference.vllm.core import EngineBroken
from engine.inference.vllm.engine import VllmRolloutEngine
from engine.inference.vllm.start import AdapterRoom
from engine.live.rollout.weight_slots import WeightSlots
from engine.policy.lineage import WeightsId
from engine.spec.slots import VLLM_RANKS
from engine.weights.low_rank import names_of
from engine.weights.port import LowRank, WeightVersion
from engine.weights.snapshot import map_weights, pack_weights
from tests.engine.inference.rollout_engine_builders import (
    Layout,
    Reference,
    adapted,
    answer,
    ask,
    finish,
    make_model,
    own_weights,
    step_until,
)

LONG = tuple(5 + i % 40 for i in range(100))  # three whole blocks, and a partial one
PROMPTS = (LONG, (5, 6, 7), (40, 41, 9, 12, 30), LONG[::-1])
RANK = 8
SCALE: Final = 0.5  # of the adapters of `adapted`
EXACT: Final = 5e-4
"""The tolerance of log-probs: float32 products in another order."""


KEPT: Final[list[object]] = []
"""Keeps all engines to the end: the first that ends destroys vLLM's process groups."""


class Lender:
    """Lends temporary folders and records their paths."""

    def __init__(self) -> None:
        self.paths: list[Path] = []

    @contextmanager
    def __call__(self) -> Iterator[Path]:
        with TemporaryDirectory() as folder:
            self.paths.append(Path(folder))
            yield Path(folder)


class Replica:
    """Two slots, and the engine behind both."""

    def __init__(self, reference: Reference) -> None:
        self.base, self.lender = reference, Lender()
        KEPT.append(self)
        room = AdapterRoom(num=2, rank=RANK)
        self.vllm = VllmRolloutEngine(reference.folder, max_batch=8, device="cpu", adapters=room)
        self.engines = AdapterEngines(self.vllm, reference.folder, room=room, lend_folder=self.lender)
        self.slots = self.engines.make(), self.engines.make()

    def begin(self) -> tuple[AdapterEngine, AdapterEngine]:
        finish(self.vllm)  # requests that a failed test left
        for slot in self.slots:
            slot.ended, slot.was_stepped = [], False
        return self.slots

    def loaded(self) -> set[int]:
        loaded: set[int] = self.vllm._llm.list_loras()
        return loaded


@pytest.fixture(scope="module")
def replica(tmp_path_factory: pytest.TempPathFactory) -> Replica:
    """A mixture whose attention and dense layer are adapted. The first engine of a process creates vLLM's process
    groups for all later ones, and a mixture needs all of them."""
    return Replica(make_model(tmp_path_factory.mktemp("model"), layout="qwen3_moe"))


def assert_matches(engine: Any, expected: Reference, prompts: Sequence[tuple[int, ...]] = PROMPTS) -> None:
    engine.submit([ask(f"{i} answers", prompt) for i, prompt in enumerate(prompts)])
    outputs = finish(engine)
    assert [outputs[f"{i} answers"].token_ids for i in range(len(prompts))] == [
        expected.greedy(prompt, 24) for prompt in prompts
    ]


def test_successive_adapters_match_transformers_with_merge(replica: Replica) -> None:
    slot, _ = replica.begin()
    first, second = adapted(replica.base, version=1), adapted(replica.base, version=2)
    assert len({expected.greedy(LONG, 24) for expected in (replica.base, first[1], second[1])}) == 3
    assert_matches(replica.vllm, replica.base)
    for version, expected in (first, second, first):
        slot.install(version)
        assert slot.view().version == version.version
        assert_matches(slot, expected)
    assert_matches(replica.vllm, replica.base)


def test_versions_and_the_base_decode_in_one_batch(replica: Replica) -> None:
    """Both slots are full, and a row without an adapter still has none."""
    expected: dict[str, tuple[Reference, int]] = {}
    for number, slot in enumerate(replica.begin()):
        version, changed = adapted(replica.base, version=11 + number)
        slot.install(version)
        slot.submit([ask(f"{number} {i}", prompt) for i, prompt in enumerate(PROMPTS[:3])])
        expected |= {f"{number} {i}": (changed, 11 + number) for i in range(3)}
    replica.vllm.submit([ask(f"base {i}", prompt) for i, prompt in enumerate(PROMPTS[:2])])
    expected |= {f"base {i}": (replica.base, 0) for i in range(2)}
    replica.vllm.step()
    assert replica.vllm.view().num_running == len(expected)
    outputs = finish(replica.vllm)
    for name, (changed, number) in expected.items():
        prompt = PROMPTS[int(name[-1])]
        output = outputs[name]
        assert output.token_ids == changed.greedy(prompt, 24)
        assert set(output.versions) == {number}
        assert output.logprobs == pytest.approx(changed.logprobs(prompt, output.token_ids, 1.0), abs=EXACT)


def test_probe_reads_its_slots_version_without_side_effects(replica: Replica) -> None:
    slots = replica.begin()
    versions = [adapted(replica.base, version=number) for number in (15, 16)]
    for slot, (version, _) in zip(slots, versions, strict=True):
        slot.install(version)
        slot.submit([ask(f"{version.version}", LONG)])
    replica.vllm.step()
    for slot, (_, changed) in zip(slots, versions, strict=True):
        assert slot.probe(LONG) == pytest.approx(changed.logprobs(LONG[:1], LONG[1:], 1.0), abs=EXACT)
    assert replica.vllm.probe(LONG) == pytest.approx(replica.base.logprobs(LONG[:1], LONG[1:], 1.0), abs=EXACT)
    outputs = finish(replica.vllm)
    for version, changed in versions:
        assert outputs[f"{version.version}"].token_ids == changed.greedy(LONG, 24)


def test_running_sequence_continues_with_the_new_adapter(replica: Replica) -> None:
    slot, other = replica.begin()
    second = adapted(replica.base, version=20)
    other.install(second[0])
    slot.install(adapted(replica.base, version=21)[0])
    slot.submit([ask("runs", PROMPTS[2], new=30)])
    other.submit([ask("second", PROMPTS[2])])
    num_before = step_until(slot, "runs", 5)
    version, changed = adapted(replica.base, version=22)
    slot.install(version)
    ends = finish(slot)["runs"]
    assert ends.versions == (21,) * num_before + (22,) * (len(ends.token_ids) - num_before)
    assert len(ends.token_ids) > num_before
    assert finish(other)["second"].token_ids == second[1].greedy(PROMPTS[2], 24)
    # Its first token after the swap: all keys and values except the previous token's are the old adapter's.
    fresh = changed.logprobs(PROMPTS[2], ends.token_ids, 1.0)
    assert ends.logprobs[num_before + 1] != pytest.approx(fresh[num_before + 1], abs=1e-3)
    assert_matches(slot, changed)


def test_no_prompt_finds_pages_of_another_version(replica: Replica) -> None:
    """Also where vLLM's number of the previous version was the same, and while a sequence runs on it."""
    slot, other = replica.begin()
    old, _ = adapted(replica.base, version=30)
    for each in (slot, other):
        each.install(old)
        answer(each, ask("long", LONG))
    slot.submit([ask("runs", LONG, new=60)])
    step_until(slot, "runs", 3)
    version, changed = adapted(replica.base, version=31)
    slot.install(version)
    slot.submit([ask("after", LONG)])
    assert finish(slot)["after"].token_ids == changed.greedy(LONG, 24)
    before = slot.view().num_prefilled
    answer(slot, ask("again", LONG))
    assert slot.view().num_prefilled - before < len(LONG) - 1


def test_sequence_moves_with_pages_only_within_its_version(replica: Replica) -> None:
    slot, other = replica.begin()
    version, changed = adapted(replica.base, version=40)
    for taker, num_read in ((version, 0), (adapted(replica.base, version=41)[0], len(LONG))):
        slot.install(version)
        other.install(taker)
        slot.submit([ask("moves", LONG)])
        num_before = step_until(slot, "moves", 4)
        (moved,) = slot.export(["moves"], leave=True, with_kv=True)
        assert moved.progress is not None and moved.progress.kv is not None
        before = other.view().num_prefilled
        output = answer(other, moved)
        assert output.versions == (40,) * num_before + (taker.version,) * (len(output.token_ids) - num_before)
        assert (output.token_ids == changed.greedy(LONG, 24)) == (taker is version)
        assert other.view().num_prefilled - before >= num_read


def test_round_of_slots_is_one_step_and_returns_sequences_once(replica: Replica) -> None:
    engines = iter(replica.begin())
    slots = WeightSlots(lambda: next(engines), num_slots=2, share_cache=True)
    for number in (50, 51):
        slot = slots.free_for(WeightsId(0, number), [each.weights for each in slots if each.decoding])
        slot.install(adapted(replica.base, version=number)[0], WeightsId(0, number))
        names = [f"{number} {i}" for i in range(3)]
        slot.engine.submit([ask(name, PROMPTS[i], new=10 + 7 * i + number % 2) for i, name in enumerate(names)])
        slot.decoding |= dict.fromkeys(names)  # type: ignore[arg-type]
    num_rounds, outputs = 0, dict[str, SequenceOutput]()
    while slots.num_decoding:
        num_rounds += 1
        for slot, output in slots.step():
            del slot.decoding[output.sequence_id]
            assert {slot.weights.version} == set(output.versions)
            outputs[output.sequence_id] = output
        view = slots.view()
        assert view.num_running + view.num_waiting == slots.num_decoding
        assert view.kv_used == pytest.approx(replica.vllm.view().kv_used)
    assert len(outputs) == 6
    assert num_rounds == max(len(output.token_ids) for output in outputs.values())


def test_vllm_holds_one_adapter_per_slot_and_no_folder_stays(replica: Replica) -> None:
    for number, slot in enumerate(3 * replica.begin()):
        slot.install(adapted(replica.base, version=60 + number)[0])
    assert replica.loaded() == {1, 2}
    assert len(replica.lender.paths) >= 6
    assert not any(path.exists() for path in replica.lender.paths)


def changed_adapter(version: WeightVersion, change: Callable[[dict[str, torch.Tensor]], None]) -> WeightVersion:
    given = {name: tensor.clone() for name, tensor in map_weights(version).items()}
    change(given)
    return pack_weights(given, weights=version.manifest.weights, low_rank=version.manifest.low_rank)


def of_rank(given: dict[str, torch.Tensor], rank: int) -> None:
    first, second = names_of("model.layers.1.mlp.down_proj")
    given |= {first: torch.ones(rank, given[first].shape[1]), second: torch.ones(given[second].shape[0], rank)}


def of_table(given: dict[str, torch.Tensor]) -> None:
    first, second = names_of("model.embed_tokens")
    given |= {first: torch.ones(3, 64), second: torch.ones(64, 3)}


def of_an_expert(given: dict[str, torch.Tensor]) -> None:
    first, second = names_of("model.layers.0.mlp.experts.0.up_proj")
    given |= {first: torch.ones(3, 64), second: torch.ones(24, 3)}


def of_narrow(given: dict[str, torch.Tensor]) -> None:
    first, _ = names_of("model.layers.1.self_attn.q_proj")
    given[first] = given[first][:, 1:]


def test_unfit_adapter_is_refused_with_a_reason_and_no_harm(replica: Replica) -> None:
    slot, _ = replica.begin()
    good, expected = adapted(replica.base, version=70)
    slot.install(good)
    fits, _ = adapted(replica.base, version=71)
    foreign = replace(fits.manifest, low_rank=LowRank(base="of another model", scale=0.5))
    torn = replace(fits.manifest, tensors=fits.manifest.tensors[1:])
    num_lent, loaded = len(replica.lender.paths), replica.loaded()
    for version, reason in (
        (replace(fits, manifest=foreign), "an adapter of another base"),
        (replace(fits, manifest=torn), "not of this model"),
        (changed_adapter(fits, of_narrow), "not of this model"),
        (changed_adapter(fits, lambda given: of_rank(given, 9)), "an adapter of rank 1 to 8, got 9"),
        (changed_adapter(fits, of_table), "an adapter of q_proj, .* got one of model.embed_tokens"),
        (changed_adapter(fits, of_an_expert), r"an adapter of .*, not of experts; got one of model.layers.0.mlp.exp"),
        (own_weights(replica.base, version=71), "an adapter, as others share the base; got all weights"),
    ):
        with pytest.raises(ValueError, match=f"^version 71: {reason}"):
            slot.install(version)
    assert (len(replica.lender.paths), replica.loaded()) == (num_lent, loaded)
    assert slot.view().version == 70
    assert_matches(slot, expected)
    slot.install(changed_adapter(fits, lambda given: of_rank(given, 8)))


def test_host_without_room_for_adapter_folder_harms_nothing(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    slot, _ = replica.begin()
    good, expected = adapted(replica.base, version=80)
    slot.install(good)
    with monkeypatch.context() as full, pytest.raises(OSError, match="no room"):
        full.setattr("engine.inference.vllm.adapters.save_file", _no_room)
        slot.install(adapted(replica.base, version=81)[0])
    assert slot.view().version == 80
    assert not replica.lender.paths[-1].exists()
    assert_matches(slot, expected)


def _no_room(tensors: object, path: Path) -> None:
    path.write_bytes(b"half of it")
    raise OSError("no room")


def test_adapter_a_worker_rejects_breaks_every_later_call(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another worker may have loaded it. The last test of this engine."""
    slot, _ = replica.begin()
    monkeypatch.setattr("engine.inference.vllm.adapters.save_file", lambda _, path: path.write_bytes(b"torn"))
    with pytest.raises(Exception, match=r"(?i)header"):
        slot.install(adapted(replica.base, version=91)[0])
    assert not replica.lender.paths[-1].exists()
    for call in (slot.view, lambda: slot.submit([ask("a", LONG)])):
        with pytest.raises(EngineBroken):
            call()


@pytest.mark.parametrize(("layout", "tied"), [("llama", False), ("qwen2", True)])
def test_every_family_with_trainable_adapters_loads_them(tmp_path: Path, layout: Layout, tied: bool) -> None:
    base = make_model(tmp_path, layout=layout, tied=tied)
    version, changed = adapted(base, version=1)
    for slot in Replica(base).slots:
        slot.install(version)
        output = answer(slot, ask("a", LONG, temperature=1.0, seed=1, new=40))
        expected, of_base = (each.logprobs(LONG, output.token_ids, 1.0) for each in (changed, base))
        assert output.logprobs == pytest.approx(expected, abs=EXACT)
        assert output.logprobs != pytest.approx(of_base, abs=EXACT)


def test_bfloat16_adapter_error_is_near_that_of_merged_weights(tmp_path: Path) -> None:
    """Merged weights are rounded to the base's grid; an adapter to its own grid, and its output once more."""
    base = make_model(tmp_path, layout="qwen3")
    base.model.to(torch.bfloat16).save_pretrained(tmp_path)
    exact = replace(base, model=copy.deepcopy(base.model).float())
    version, _ = adapted(base, version=1)
    given = map_weights(version)
    for name, parameter in exact.model.named_parameters():
        first, second = names_of(name.removesuffix(".weight"))
        if first in given:
            parameter.data += SCALE * (given[second] @ given[first])
    (slot, _), merging = Replica(base).slots, VllmRolloutEngine(tmp_path, max_batch=8, device="cpu")
    KEPT.append(merging)
    apart: dict[str, float] = {}
    for name, engine in (("adapter", slot), ("merged", merging)):
        engine.install(version)
        engine.submit([ask(str(seed), LONG[seed:], temperature=1.0, seed=seed, new=40) for seed in range(8)])
        errors: list[float] = []
        for seed, output in finish(engine).items():
            true = exact.logprobs(LONG[int(seed) :], output.token_ids, 1.0)
            errors += [abs(own - other) for own, other in zip(output.logprobs, true, strict=True)]
        apart[name] = statistics.mean(errors)
    print(apart)
    assert apart["adapter"] < 1.5 * apart["merged"]


def test_accepted_ranks_are_vllms() -> None:
    assert get_args(MaxLoRARanks) == VLLM_RANKS
