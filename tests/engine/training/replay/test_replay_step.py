"""A recorded step is replayed bit for bit, by one process or two; the first difference is named."""

import json
import struct
import sys
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.__main__ import main
from engine.spec.job import JobSpec
from engine.training.batch import TrainingBatch
from engine.training.checkpoint.folder import verify_checkpoint
from engine.training.factory import build_trainer
from engine.training.ranks.world import World
from engine.training.replay.batch import as_tensors, from_tensors
from engine.training.replay.comparison import difference
from engine.training.replay.record import BATCH_FILE, BEGIN, RECORD_FILE, Machine
from engine.training.replay.recording import AskedStep, RecordedTrainer, train_witnessed
from engine.training.settings import TrainerSettings
from tests.engine.conftest import MakeLlama
from tests.engine.training.ranks.worlds import run_ranks
from tests.engine.training.trainer_conformance import trajectories_of

pytestmark = pytest.mark.usefixtures("one_thread")


def spec_of(model: Path, **changes: Any) -> dict[str, Any]:
    spec = {
        "name": "recorded",
        "model": {"source": str(model)},
        "optimizer": {"learning_rate": 1e-3, "warmup_steps": 1},
        "training": {"steps": 4, "mini_batches": 2},
        **changes,
    }
    return JobSpec.model_validate(spec).model_dump(mode="json")


@pytest.fixture
def recording(make_llama: MakeLlama, tmp_path: Path) -> Path:
    """A recording of the second step, which begins with moments."""
    model = make_llama(dtype="bfloat16")
    spec = spec_of(model)
    asked = AskedStep(step=2, folder=tmp_path / "step-2", spec=spec, model=model, num_ranks=1)
    settings = TrainerSettings.of(JobSpec.model_validate(spec))
    trainer = RecordedTrainer(build_trainer(model, settings, device="cpu"), asked, steps_before=0)
    for step in range(3):
        trainer.train_step(trajectories_of(step, tools=True))
    return asked.folder


def replay(monkeypatch: pytest.MonkeyPatch, folder: Path, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["python -m engine", "replay-step", str(folder), *words])
    return main()


def change(folder: Path, **changes: Any) -> None:
    record = json.loads((folder / RECORD_FILE).read_text())
    record["spec"]["optimizer"] |= changes
    (folder / RECORD_FILE).write_text(json.dumps(record))


def test_recorded_step_replays_bit_for_bit(
    recording: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert replay(monkeypatch, recording) == 0
    assert "step 2: bit for bit the same" in capsys.readouterr().out
    assert sorted(path.name for path in recording.iterdir()) == [
        *("batch.safetensors", "begin", "computed.safetensors", "end", "record.json")
    ], "the replay's files are deleted"


def test_pending_checkpoint_is_written_before_the_recording(make_llama: MakeLlama, tmp_path: Path) -> None:
    model = make_llama(dtype="bfloat16")
    spec = spec_of(model)
    asked = AskedStep(step=2, folder=tmp_path / "step-2", spec=spec, model=model, num_ranks=1)
    trainer = build_trainer(model, TrainerSettings.of(JobSpec.model_validate(spec)), device="cpu")
    recorded = RecordedTrainer(trainer, asked, steps_before=0)
    recorded.train_step(trajectories_of(0))
    write = recorded.prepare_save(tmp_path / "step-1")
    step = Thread(target=recorded.train_step, args=(trajectories_of(1),))
    step.start()
    step.join(0.5)
    assert step.is_alive(), "it waits for the memory of the pending checkpoint"
    write()
    step.join()
    assert verify_checkpoint(tmp_path / "step-1") and (asked.folder / RECORD_FILE).exists()


def test_changed_bit_of_an_input_log_prob_is_named(
    recording: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    batch = load_file(recording / BATCH_FILE)
    bits = batch["logprobs_R"].view(torch.int32)
    bits[3] ^= 1
    save_file(batch, recording / BATCH_FILE)
    assert replay(monkeypatch, recording) == 1
    assert "diverges first in batch/logprobs_R: it differs from the recording" in capsys.readouterr().out


def test_changed_bit_of_an_initial_weight_is_named(
    recording: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = next((recording / "begin").rglob("model*.safetensors"))
    content = bytearray(file.read_bytes())
    (header,) = struct.unpack("<Q", content[:8])
    described = json.loads(content[8 : 8 + header])
    name = "model.layers.1.mlp.down_proj.weight"
    content[8 + header + described[name]["data_offsets"][0]] ^= 1
    file.write_bytes(content)
    assert replay(monkeypatch, recording) == 1
    assert f"diverges first in begin/{file.name}/{name}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"learning_rate": 1.1e-3}, "update 2, logprobs"),  # the first update results in other weights
        ({"max_grad_norm": 1e-3}, "update 2, logprobs"),
    ],
)
def test_first_difference_is_named_with_its_size(
    recording: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    changed: dict[str, Any],
    named: str,
) -> None:
    change(recording, **changed)
    assert replay(monkeypatch, recording) == 1
    output = capsys.readouterr().out
    assert f"diverges first in {named}:" in output and "the largest difference is" in output


def recorded_by(world: World, folder: Path, results: Path, shard_within: str) -> None:
    """Rank 0 writes the recording; the other ranks make the same calls. Two ranks are a host."""
    spec = spec_of(folder, resources={"trainer_devices": world.count}, trainer={"shard_within": shard_within})
    world.host = f"host-{world.index // 2}"
    ranks_per_host = 2 if shard_within == "node" else None
    settings = TrainerSettings.of(JobSpec.model_validate(spec))
    trainer = build_trainer(folder, settings, device="cpu", world=world)
    recording = results / "recording"
    if world.index:
        trainer.prepare_save(recording / BEGIN)()
        train_witnessed(trainer, trajectories_of(0), recording, computed=results)
    else:
        asked = AskedStep(
            step=1, folder=recording, spec=spec, model=folder, num_ranks=world.count, ranks_per_host=ranks_per_host
        )
        RecordedTrainer(trainer, asked, steps_before=0).train_step(trajectories_of(0))
    trainer.close()


@pytest.mark.long
@pytest.mark.parametrize(("num_ranks", "shard_within"), [(2, "all"), (4, "node")])
def test_step_of_ranks_is_replayed_by_as_many(
    make_llama: MakeLlama,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    num_ranks: int,
    shard_within: str,
) -> None:
    assert run_ranks(num_ranks, recorded_by, make_llama(dtype="bfloat16"), tmp_path, shard_within) == [0] * num_ranks
    assert replay(monkeypatch, tmp_path / "recording") == 0
    assert "step 1: bit for bit the same" in capsys.readouterr().out


def test_differences_between_machines_are_listed() -> None:
    here = Machine.here()
    other = here.model_copy(update={"processor": "a wafer", "versions": here.versions | {"torch": "1.0"}})
    assert other.differences(here) == [
        f"recorded on a wafer, replayed on {here.processor}",
        f"torch was 1.0 and is {here.versions['torch']}",
    ]
    assert here.differences(here) == []


def test_folder_without_a_recording_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert replay(monkeypatch, tmp_path) == 2
    assert f"{tmp_path}: no recording of a step" in capsys.readouterr().err


def test_batch_round_trips_through_tensors() -> None:
    batch = TrainingBatch.of([*trajectories_of(0, tools=True), *trajectories_of(1, num=3)])
    batch = batch.only(np.arange(2, 12))
    again = from_tensors(as_tensors(batch))
    for name in ("groups_N", "rewards_N", "prompt_starts_N", "response_starts_N", "num_written_N", "last_written_N"):
        assert np.array_equal(getattr(again, name), getattr(batch, name))
    for name in ("ids_A", "logprobs_R", "staleness_R", "written_R"):
        assert np.array_equal(getattr(again.tokens, name), getattr(batch.tokens, name))
    assert (again.lowest_id, again.highest_id) == (batch.lowest_id, batch.highest_id)


def test_difference_lists_count_and_size() -> None:
    was, now = torch.tensor([1.0, 2.0, float("nan")]), torch.tensor([1.0, 2.5, float("nan")])
    assert difference(was, now) == "1 of 3 numbers, the largest difference is 0.5"
    assert difference(torch.zeros(1), -torch.zeros(1)) == "the same numbers in other bits"
    assert "torch.float64" in difference(was, was.double())
