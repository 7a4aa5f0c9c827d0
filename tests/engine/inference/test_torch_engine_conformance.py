"""The torch engine keeps every promise of the rollout port, in both layouts of its decode rows."""

from pathlib import Path
from typing import ClassVar, Literal

import pytest

from engine.inference.torch_engine import TorchRolloutEngine
from tests.engine.inference.rollout_engine_builders import MakeEngine
from tests.engine.inference.rollout_engine_conformance import RolloutEngineConformance

pytestmark = pytest.mark.usefixtures("one_thread")


class TestTorchEngine(RolloutEngineConformance):
    layout: ClassVar[Literal["window", "paged"]] = "window"

    @pytest.fixture
    def make_engine(self) -> MakeEngine:
        def make(folder: Path, *, copy: int = 0) -> TorchRolloutEngine:
            return TorchRolloutEngine(folder, max_batch=8, device="cpu", layout=self.layout)

        return make


class TestTorchEngineAsOnAGpu(TestTorchEngine):
    layout: ClassVar[Literal["window", "paged"]] = "paged"
