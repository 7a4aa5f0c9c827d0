"""The first step of a kind runs without a graph, the second is captured and replayed, and each step runs exactly once.

Fakes replace torch's graphs, with the same names and arguments: there is no device here that has graphs.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from engine.inference.rows.captures import Captures


class Device:
    """A fake GPU that records which steps run and which are only captured."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.captured: list[str] = []
        self.captures_now: list[str] | None = None

    def step(self, name: str) -> Callable[[], None]:
        def run() -> None:
            (self.done if self.captures_now is None else self.captures_now).append(name)

        return run


class Graph:
    steps: list[str]
    device: Device

    def replay(self) -> None:
        self.device.done += self.steps


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    there, real = Device(), inspect.signature(torch.cuda.graph.__init__)

    @contextmanager
    def graph(*given: Any, **named: Any) -> Iterator[None]:
        arguments = real.bind(None, *given, **named).arguments  # torch's own names
        assert arguments["pool"] == "pool" and arguments["capture_error_mode"] in ("global", "thread_local", "relaxed")
        made, there.captures_now = given[0], []
        yield
        made.steps, made.device = there.captures_now, there
        there.captured += made.steps
        there.captures_now = None

    monkeypatch.setattr(torch.cuda, "graph", graph)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: "pool")
    return there


def test_second_step_of_a_kind_is_captured_and_each_runs_once(device: Device) -> None:
    captures = Captures("cuda")
    for kind in "aabaab":
        captures.run(kind, device.step(kind), where=1)
    assert "".join(device.done) == "aabaab"
    assert device.captured == ["a", "b"]


def test_all_kinds_are_captured_again_when_memory_moves(device: Device) -> None:
    captures = Captures("cuda")
    for where in (1, 1, 1, 2, 2):
        captures.run("a", device.step(f"a at {where}"), where=where)
    assert device.done == ["a at 1"] * 3 + ["a at 2"] * 2
    assert device.captured == ["a at 1", "a at 2"]


@pytest.mark.parametrize(("name", "are_possible"), [("cpu", True), ("cuda", False)])
def test_steps_run_without_graphs_where_capture_is_impossible(device: Device, name: str, are_possible: bool) -> None:
    captures = Captures(name, are_possible=are_possible)
    for _ in range(3):
        captures.run("a", device.step("a"), where=1)
    assert (device.done, device.captured) == (["a"] * 3, [])
