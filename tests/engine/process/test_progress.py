"""Long work names itself, and gives a sign of life for every unit of it."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import pytest
import torch

from engine.inference.port import SamplingParams, SequenceRequest
from engine.inference.torch_engine import TorchRolloutEngine
from engine.live.weights.segments import Segment
from engine.models import pieces
from engine.models.loading import DEMO_FOLDER, load_decoder, model_tensors
from engine.policy.lineage import WeightsId
from engine.policy.progress import LOOP
from engine.process.progress import LoopProgress, progress_reporter, report_progress, working
from engine.spec.job import JobSpec
from engine.training.checkpoint.folder import verify_checkpoint, write_checkpoint
from engine.training.factory import build_trainer
from engine.training.port import TrainingTrajectory
from engine.training.settings import TrainerSettings
from engine.training.step.micro_batch import batch_step
from engine.weights.chunks import PIECE_BYTES
from engine.weights.hashes import hash_chunks
from engine.weights.snapshot import pack_weights

pytestmark = pytest.mark.usefixtures("one_thread")


class Noting(LoopProgress):
    """Records every piece that begins."""

    def __init__(self) -> None:
        super().__init__()
        self.begun: list[str] = []

    def begin(self, what: str, *, constant_s: float = 0.0, is_opaque: bool = False) -> None:
        self.begun.append(what)
        super().begin(what, constant_s=constant_s, is_opaque=is_opaque)

    @property
    def counts(self) -> Counter[str]:
        return Counter(self.begun)


@contextmanager
def noted() -> Iterator[Noting]:
    progress = Noting()
    with progress.attached():
        yield progress
    assert progress.piece.what == LOOP, "what was begun has ended"


def trajectory(group: int, length: int) -> TrainingTrajectory:
    return TrainingTrajectory(
        group=group,
        prompt_ids=(5, 6, 7),
        response_ids=tuple(8 + at % 9 for at in range(length)),
        behaviour_logprobs=(-1.0,) * length,
        reward=float(length % 2),
    )


def test_load_reports_each_tensor() -> None:
    with noted() as progress:
        model = load_decoder(DEMO_FOLDER, device="cpu")
    assert progress.counts == {"load": len(model_tensors(model))}


def test_load_signs_for_every_piece_of_a_large_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = load_decoder(DEMO_FOLDER, device="cpu")
    monkeypatch.setattr(pieces, "PIECE_BYTES", 1_000)
    with noted() as progress:
        model = load_decoder(DEMO_FOLDER, device="cpu")
    assert progress.counts["load"] > 10 * len(model_tensors(model))
    assert all(torch.equal(tensor, model_tensors(plain)[name]) for name, tensor in model_tensors(model).items())


def test_copy_in_pieces_equals_a_copy_in_one_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "PIECE_BYTES", 40)
    for shape in ((), (0, 3), (7,), (9, 5), (2, 3, 4)):
        source = torch.randn(shape)
        target = torch.empty_like(source)
        with noted() as progress:
            pieces.copy_tensor(target, source, what="copy")
        assert torch.equal(target, source) and progress.counts["copy"] >= source.nbytes / 60


def test_every_layer_of_forward_and_backward_is_a_sign() -> None:
    model = load_decoder(DEMO_FOLDER, device="cpu")
    spec = JobSpec.model_validate({"name": "progress"})
    trainer = build_trainer(DEMO_FOLDER, TrainerSettings.of(spec), device="cpu")
    with noted() as progress:
        trainer.train_step([trajectory(group, length) for group in range(2) for length in (30, 41)])
    [_] = progress.begun
    assert progress.piece.serial == 2 + 2 * len(model.layers), "begin, end, and twice for each layer"


def test_step_reports_each_micro_batch() -> None:
    spec = JobSpec.model_validate({"name": "progress", "trainer": {"micro_batch_tokens": 64}})
    trainer = build_trainer(DEMO_FOLDER, TrainerSettings.of(spec), device="cpu")
    batch = [trajectory(group, length) for group in range(4) for length in (30, 41)]
    micro_batches = batch_step(batch, max_tokens=64, device="cpu").micro_batches
    with noted() as progress:
        trainer.train_step(batch)
    sizes = [len(each.tokens.ids_T) for each in micro_batches]
    assert len(sizes) > 3 and progress.begun == ["micro-batch"] * len(sizes)


def test_install_reports_tensors_and_decoding_reports_steps() -> None:
    engine = TorchRolloutEngine(DEMO_FOLDER, max_batch=2, device="cpu")
    tensors = model_tensors(load_decoder(DEMO_FOLDER, device="cpu"))
    weights = pack_weights(tensors, weights=WeightsId(0, 1))
    sampling = SamplingParams(max_new_tokens=3, temperature=0.0, seed=0)
    engine.submit([SequenceRequest(sequence_id="one", prompt_ids=(5, 6, 7), sampling=sampling)])
    with noted() as progress:
        engine.install(weights)
        engine.step()
    assert progress.counts == {"install": len(tensors), "sum": len(tensors), "prefill": 1, "decode": 1}


def test_gigabytes_are_hashed_and_mapped_in_pieces() -> None:
    num_bytes = 2 * PIECE_BYTES + 1
    with noted() as progress:
        segment = Segment.create("test", num_bytes)
        segment.remove()
        hash_chunks(segment.buffer, PIECE_BYTES)
    assert progress.counts["hash"] == 3 and progress.counts["map"] in (1, 3), "an older kernel finds no pages ahead"


def test_a_checkpoint_is_read_back_in_pieces(tmp_path: Path) -> None:
    def write(file: Path) -> None:
        file.write_bytes(bytes(5 * 2**20))

    write_checkpoint(tmp_path, {"part": write})
    with noted() as progress:
        verify_checkpoint(tmp_path)
    assert progress.counts["checkpoint"] >= 5


def test_other_thread_does_not_sign_for_the_loop() -> None:
    def beside() -> None:
        with working("hash"):
            report_progress()

    with noted() as progress:
        before = progress.piece
        worker = Thread(target=beside)
        worker.start()
        worker.join()
        assert progress.piece == before and progress.begun == []


def test_library_threads_may_sign_for_the_waiting_loop() -> None:
    with noted() as progress:
        before = progress.piece.serial
        worker = Thread(target=progress_reporter())
        worker.start()
        worker.join()
        assert progress.piece.serial == before + 1


def test_failed_piece_of_work_has_ended() -> None:
    with noted() as progress, pytest.raises(ZeroDivisionError), working("sum"):
        assert progress.piece.what == "sum"
        torch.zeros(1)
        _ = 1 / 0
