"""The torch engine conforms to the rollout port with both kinds of decode rows; a GPU's rows run on a GPU if there is
one."""

from pathlib import Path
from typing import ClassVar, Literal

import pytest
import torch

from engine.inference.torch_engine import TorchRolloutEngine
from tests.engine.inference.rollout_engine_builders import MakeEngine
from tests.engine.inference.rollout_engine_conformance import RolloutEngineConformance

pytestmark = pytest.mark.usefixtures("one_thread")


class TestTorchEngine(RolloutEngineConformance):
    layout: ClassVar[Literal["window", "paged"]] = "window"
    device: ClassVar[str] = "cpu"

    @pytest.fixture
    def make_engine(self) -> MakeEngine:
        def make(folder: Path, *, copy: int = 0) -> TorchRolloutEngine:
            return TorchRolloutEngine(folder, max_batch=8, device=self.device, layout=self.layout)

        return make


class TestTorchEngineAsOnAGpu(TestTorchEngine):
    layout: ClassVar[Literal["window", "paged"]] = "paged"
    device: ClassVar[str] = "cuda" if torch.cuda.is_available() else "cpu"
