"""One real Ray for all live tests, never one that others started on this machine. A loop of this process ends with the
test that started it."""

import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from engine.live.body.loop import Loop

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def _no_loop_outlives_its_test(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nine leftover loops of a hundred ticks a second took a tenth of the time of all later tests."""
    begun: list[Loop] = []
    begin = Loop.__init__

    def begin_noted(self: Loop, **given: Any) -> None:
        begin(self, **given)
        begun.append(self)

    monkeypatch.setattr(Loop, "__init__", begin_noted)
    yield
    for loop in begun:
        loop.stop()


@pytest.fixture(scope="session")
def own_ray() -> Iterator[str]:
    """Starts Ray and yields its address."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(ROOT)  # Ray's workers import the engine from here
    os.environ.pop("RAY_ADDRESS", None)
    import ray

    priority = {"worker_niceness": 0}  # Ray's default of 15 starves its actors while `make test` runs other tests
    start = partial(
        ray.init,
        address="local",
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=200 * 2**20,
        _system_config=priority,
    )
    try:
        context: Any = start()
    except Exception:  # noqa: BLE001 - Ray raises no type of its own here; its processes get 30 s, too few on a busy host
        ray.shutdown()
        context = start()
    if before is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = before
    yield context.address_info["gcs_address"]
    ray.shutdown()


def actor_processes(kind: str) -> list[psutil.Process]:
    """Processes of this Ray's live actors of this class; Ray puts the class name into the process title."""
    processes = []
    for process in psutil.Process().children(recursive=True):
        try:
            if kind in " ".join(process.cmdline()) and process.status() != psutil.STATUS_ZOMBIE:
                processes.append(process)
        except psutil.NoSuchProcess:
            continue
    return processes


@pytest.fixture
def processes_of() -> Callable[[str], list[psutil.Process]]:
    return actor_processes


@pytest.fixture
def repository() -> Path:
    return ROOT


@pytest.fixture
def python() -> str:
    return sys.executable
