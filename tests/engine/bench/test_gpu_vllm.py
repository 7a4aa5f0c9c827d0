"""The vLLM part of the GPU bench runs completely on a CPU, and lists figures that it did not measure."""

from pathlib import Path

import pytest

from engine.fit.known_models import known_shape
from engine.scorecard.tables import Row
from tests.bench.engine.rollouts.on_device import (
    NO_VLLM,
    OF_A_CPU,
    OF_A_GPU,
    OTHER_WAYS,
    Bench,
    kv_bytes_of_a_token,
    vllm_rows,
    weight_bytes_of_a_step,
)


def rows_of(remarks: list[str], *, is_over: bool, python: str) -> list[Row]:
    bench = Bench(
        device="cpu",
        scale=OF_A_CPU,
        ceilings={"memory": 1e9, "link": 1e9},
        repeats=1,
        is_over=lambda: is_over,
        remark=remarks.append,
    )
    return list(vllm_rows(bench, python=python))


@pytest.mark.vllm
@pytest.mark.soak  # vLLM starts for half a minute; test_rollouts.py has it started and measured by the other bench
def test_every_figure_has_its_bound(vllm_python: Path) -> None:
    remarks: list[str] = []
    rows = rows_of(remarks, is_over=False, python=str(vllm_python))
    (context,) = OF_A_CPU.contexts
    decoding = [f"vLLM as it runs: tiny, {batch} rows at {context}" for batch in OF_A_CPU.batches]
    ours = [f"{figure}, ours of a step" for figure in decoding]
    expected = [*(each for pair in zip(decoding, ours, strict=True) for each in pair), "vLLM as it runs: tiny, install"]
    assert [row["figure"] for row in rows] == expected, remarks
    assert all(float(row["median"] or 0) > 0 for row in rows)
    assert [row["bound_by"] for row in rows] == ["memory", None, "memory", None, "link"]
    assert remarks == []


def test_without_time_or_without_vllm_nothing_is_started() -> None:
    remarks: list[str] = []
    assert not rows_of(remarks, is_over=True, python="/nowhere/python")
    assert remarks == ["not tried: vLLM, tiny, as it runs, for want of time"]


def test_machine_without_vllm_has_a_remark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAMINAR_VLLM_PYTHON", "/nowhere/python")
    remarks: list[str] = []
    assert not rows_of(remarks, is_over=False, python="")
    assert remarks == [NO_VLLM]


def test_step_reads_every_weight_but_the_embedding() -> None:
    small, large = known_shape("Qwen3-0.6B"), known_shape("Qwen3-8B")
    assert weight_bytes_of_a_step(small) == 2 * small.num_weights
    assert weight_bytes_of_a_step(large) == 2 * (large.num_weights - 151_936 * 4_096)
    assert kv_bytes_of_a_token(large) == 147_456  # keys and values of 8 heads of 128 in 36 layers, 2 bytes each
    assert OF_A_GPU.other_ways == OTHER_WAYS
