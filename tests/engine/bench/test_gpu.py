"""The GPU bench runs completely on a CPU, and lists figures that it did not measure."""

import json
from typing import Any

import pytest
import torch

from tests.bench.engine.command import bench
from tests.bench.engine.gpu_probes import OF_A_CPU, OF_A_GPU, PROBES, decoder_of, products_of


def report_of(capsys: pytest.CaptureFixture[str], *words: str, part: str = "trainer") -> dict[str, Any]:
    assert bench(["gpu", "--json", "--parts", part, *words]) == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    return report


@pytest.mark.long
def test_every_figure_is_measured_and_none_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    report = report_of(capsys, "--device", "cpu", "--repeats", "1")
    figures = {row["figure"]: row["median"] for row in report["rows"]}
    assert list(PROBES) == list(figures)[: len(PROBES)], report["remarks"]
    assert all(float(figures[name]) > 0 for name in PROBES)
    assert not [remark for remark in report["remarks"] if "tried" in str(remark)]
    assert figures["log-probs in float32 on cpu"] == 0 < float(figures["log-probs in bfloat16 on cpu"])


def test_figures_without_time_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    report = report_of(capsys, "--device", "cpu", "--seconds", "-1")
    assert [remark for remark in report["remarks"] if str(remark).startswith("not tried: ")] == [
        f"not tried: {name}, for want of time" for name in PROBES
    ]


def test_missing_gpu_is_a_remark(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    report = report_of(capsys)
    assert not report["rows"] and "No GPU here" in str(report["remarks"][0])


def test_a_pass_is_counted_by_the_weights_that_multiply() -> None:
    model = decoder_of(OF_A_CPU.shape, torch.device("cpu"), max_positions=8)
    assert products_of(OF_A_CPU.shape) == model.num_parameters
    with torch.device("meta"):
        large = decoder_of(OF_A_GPU.shape, torch.device("meta"), max_positions=8)
    assert products_of(OF_A_GPU.shape) == large.num_parameters - large.embedding_VD.numel()
