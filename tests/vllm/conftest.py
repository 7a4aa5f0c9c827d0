"""One engine for each model in the whole session: the first start takes half a minute, every other one a second.

The main suite reads each outcome as soon as its case ends (`OUTCOMES`, tests/engine/inference/test_vllm.py).
"""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from safetensors.torch import load_file

from engine.inference.vllm.engine import VllmRolloutEngine
from engine.models.loading import WEIGHTS_FILE
from engine.policy.lineage import WeightsId
from engine.weights.snapshot import pack_weights
from tests.engine.inference.rollout_engine_builders import finish, make_model

OUTCOMES = os.environ.get("VLLM_OUTCOMES", "")
"""A file of lines: the cases selected, then each case with its faults, "" for none, and why it was skipped."""

MakeVllm = Callable[..., VllmRolloutEngine]


def pytest_collection_finish(session: pytest.Session) -> None:
    _write({"selected": [item.nodeid for item in session.items]})


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    _faults.clear()
    _skips.clear()
    result = yield
    _write({"case": item.nodeid, "faults": "\n".join(_faults), "skipped": "\n".join(_skips)})
    return result


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        _faults.append(f"{report.nodeid}, {report.when}\n{report.longreprtext}")
    elif report.skipped and isinstance(report.longrepr, tuple):
        _skips.append(report.longrepr[2].removeprefix("Skipped: "))


_faults: list[str] = []
_skips: list[str] = []


def _write(line: dict[str, object]) -> None:
    if OUTCOMES:
        with Path(OUTCOMES).open("a") as file:
            file.write(f"{json.dumps(line)}\n")


@pytest.fixture(scope="session")
def make_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakeVllm]:
    mixture = make_model(tmp_path_factory.mktemp("first"), layout="qwen3_moe").folder
    started: dict[tuple[Path, int, int, bool], VllmRolloutEngine] = {}

    def make(folder: Path, *, copy: int = 0, kv_tokens: int = 0, begins_empty: bool = False) -> VllmRolloutEngine:
        key = (folder, copy, kv_tokens, begins_empty)
        if not started:  # the first engine creates vLLM's process groups for all, and a mixture needs all of them
            started[mixture, 0, 0, False] = VllmRolloutEngine(mixture, max_batch=8, device="cpu")
        if key not in started:
            started[key] = VllmRolloutEngine(
                folder, max_batch=8, device="cpu", kv_tokens=kv_tokens, begins_empty=begins_empty
            )
        engine = started[key]
        finish(engine)  # requests that a failed test left
        if engine.view().version != 0:
            engine.install(pack_weights(load_file(folder / WEIGHTS_FILE), weights=WeightsId(0, 0)))
        return engine

    yield make
    for engine in started.values():  # all end with the process; closing each takes seconds
        engine._core._llm.engine_core._finalizer.detach()
