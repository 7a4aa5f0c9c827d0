"""An error in a micro-batch carries the micro-batch's size, in the forward and the backward pass."""

from collections.abc import Callable

import pytest
import torch

from engine.training.factory import build_trainer
from engine.training.trainer import Trainer
from tests.engine.conftest import MakeLlama
from tests.engine.training.trainer_conformance import settings, trajectories_of

pytestmark = pytest.mark.usefixtures("one_thread")


def fail(*_: object) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory")


def in_forward(trainer: Trainer) -> None:
    trainer._model.layers[-1].register_forward_pre_hook(fail)


def in_backward(trainer: Trainer) -> None:
    trainer._model.layers[-1].register_forward_hook(lambda _, __, output: output.register_hook(fail) and None)


@pytest.mark.parametrize("where", [in_forward, in_backward])
def test_micro_batch_size_is_noted_once(where: Callable[[Trainer], None], make_llama: MakeLlama) -> None:
    trainer = build_trainer(make_llama(), settings(), device="cpu")
    where(trainer)
    (one,) = trajectories_of(1, num=1)
    length = len(one.prompt_ids) + len(one.response_ids) - 1  # the last token predicts nothing
    with pytest.raises(torch.OutOfMemoryError) as alone:
        trainer.train_step([one])
    assert alone.value.__notes__ == [f"in a micro-batch of {length} tokens, one sequence of {length}"]
    with pytest.raises(torch.OutOfMemoryError) as several:
        trainer.train_step(trajectories_of(1, num=4))
    (note,) = several.value.__notes__
    assert note.startswith("in a micro-batch of ") and ", 4 sequences, the longest " in note
