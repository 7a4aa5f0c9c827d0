"""A probe detects a silent fault of vLLM's reload on a CPU: a packed copy of the old weights stays in use."""

from dataclasses import replace
from pathlib import Path

import pytest

from engine.inference.vllm import weights as transfer
from engine.weights.port import Probe
from engine.weights.probe import OtherWeights, compare, probe_ids
from tests.engine.inference.rollout_engine_builders import (
    MAX_POSITIONS,
    VOCAB_SIZE,
    Reference,
    ask,
    finish,
    make_model,
    perturbed,
    without_sums,
)
from tests.vllm.conftest import MakeVllm

ROW = probe_ids(VOCAB_SIZE, max_positions=MAX_POSITIONS)


def probe_of(reference: Reference) -> Probe:
    return Probe(token_ids=ROW, logprobs=tuple(reference.logprobs(ROW[:1], ROW[1:], 1.0)), tolerance=1e-3)


def test_stale_tied_head_is_detected(make_engine: MakeVllm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = make_model(tmp_path, tied=True)
    engine = make_engine(base.folder)
    weights, changed = perturbed(base, version=2)
    manifest = replace(weights.manifest, probe=probe_of(changed))
    with monkeypatch.context() as unrepaired:
        unrepaired.setattr(transfer, "_tied_heads", lambda model: [])
        engine.install(without_sums(weights))
    with pytest.raises(OtherWeights, match="version 2: the installed weights are not the trainer's"):
        compare(manifest, engine.probe(ROW))
    engine.install(weights)
    compare(manifest, engine.probe(ROW))


def test_probe_reads_only_as_many_tokens_as_are_free(make_engine: MakeVllm, tmp_path: Path) -> None:
    base = make_model(tmp_path)
    engine = make_engine(base.folder, kv_tokens=64)
    expected = base.logprobs(ROW[:1], ROW[1:], 1.0)
    assert engine.probe(ROW) == pytest.approx(expected[:-1], abs=5e-5), "the probe needs room for one token of its own"
    requests = [ask(str(i), (5 + i,) * 20, new=12) for i in range(2)]
    engine.submit(requests)
    assert not engine.step() and engine.view().num_running == 2
    assert engine.probe(ROW) == ()
    assert {name: each.token_ids for name, each in finish(engine).items()} == {
        each.sequence_id: base.greedy(each.prompt_ids, 12) for each in requests
    }
