"""The torch engine's part of the GPU bench runs completely on a CPU, and lists figures that it did not measure."""

import json
from functools import cache
from typing import Any

import pytest

from engine.fit.shape import ModelShape
from engine.scorecard.tables import Row
from tests.bench.engine.command import bench
from tests.bench.engine.rollouts import torch_on_device
from tests.bench.engine.rollouts.on_device import OF_A_CPU, OF_A_GPU, Bench, kv_bytes_of_a_token, weight_bytes_of_a_step
from tests.bench.engine.rollouts.torch_on_device import GOAL, torch_rows

pytestmark = pytest.mark.usefixtures("one_thread")

DECODING = ["torch engine: tiny, 3 rows at 40", "torch engine: tiny, 1 rows at 40"]
FIGURES = [
    "torch engine: tiny, reading in 40",
    *DECODING,
    "torch engine: tiny, drawing for 3 rows",
    "torch engine: tiny, drawing for 3 rows of the likeliest",
    "torch engine: tiny, install",
]


def bench_of(remarks: list[str], *, is_over: bool = False) -> Bench:
    return Bench(
        device="cpu",
        scale=OF_A_CPU,
        ceilings={"memory": 1e9, "products": 1e9, "link": 1e9},
        repeats=2,
        is_over=lambda: is_over,
        remark=remarks.append,
    )


@cache
def measured() -> tuple[dict[str, Row], list[str]]:
    """The rows by figure, and the remarks."""
    remarks: list[str] = []
    return {str(row["figure"]): row for row in torch_rows(bench_of(remarks))}, remarks


@pytest.mark.long
def test_every_figure_has_its_bound() -> None:
    rows, remarks = measured()
    assert list(rows) == FIGURES and remarks == []
    assert all(float(row["median"] or 0) > 0 for row in rows.values())
    assert [row["bound_by"] for row in rows.values()] == ["products", *["memory"] * 4, "link"]
    assert [name for name, row in rows.items() if row.get("goal") == GOAL] == DECODING


def test_decoding_bound_is_bandwidth_over_weights_and_contexts() -> None:
    """Contexts are the nominal ones, plus or minus the measured steps."""
    rows, _ = measured()
    shape = ModelShape.of_config(OF_A_CPU.configs["tiny"])
    for figure, num_rows in zip(DECODING, (3, 1), strict=True):
        shortest, longest = (
            num_rows * 1e9 / (weight_bytes_of_a_step(shape) + num_rows * context * kv_bytes_of_a_token(shape))
            for context in (40 + 30, 40)
        )
        assert shortest < float(rows[figure]["bound"] or 0) < longest


def test_remark_gives_the_memory_that_a_figure_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The 8B shape with 64 rows of 8k does not fit 80 GB, with 16 it does."""
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda: (80 * 10**9, 80 * 10**9))
    remarks: list[str] = []
    shape = ModelShape.of_config(OF_A_GPU.configs["Qwen3-8B"])
    gpu = Bench(device="cuda", scale=OF_A_GPU, ceilings={}, repeats=7, is_over=lambda: False, remark=remarks.append)
    fits = {batch: torch_on_device._fits(gpu, shape, batch, 8_192, "Qwen3-8B") for batch in OF_A_GPU.batches}
    assert fits == {1: True, 16: True, 64: False}
    assert len(remarks) == 1 and "64 rows at 8,192: needs" in remarks[0] and "80 are free" in remarks[0]


def test_no_figure_starts_without_time_and_failures_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    remarks: list[str] = []
    assert not list(torch_rows(bench_of(remarks, is_over=True)))
    assert remarks == [
        f"not tried: torch engine, tiny{what}, for want of time" for what in (" at 40", ", drawing", ", install")
    ]

    def breaks(*given: Any, **named: Any) -> None:
        raise NotImplementedError("no such kernel\nhere")

    remarks.clear()
    monkeypatch.setattr(torch_on_device, "sample_tokens", breaks)
    assert [row["figure"] for row in torch_rows(bench_of(remarks))] == [*FIGURES[:3], FIGURES[-1]]
    assert remarks == ["could not be tried: torch engine, tiny, drawing: NotImplementedError: no such kernel"]


@pytest.mark.long
def test_part_is_selected_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(["gpu", "--json", "--device", "cpu", "--repeats", "1", "--parts", "torch"]) == 0
    figures = [row["figure"] for row in json.loads(capsys.readouterr().out)["rows"]]
    assert figures[-len(FIGURES) :] == FIGURES and not any("log-probs" in figure for figure in figures)
