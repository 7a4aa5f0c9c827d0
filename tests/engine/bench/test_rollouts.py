"""The rollouts bench measures us and vLLM alone at the same work, and our share of a step."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.bench.engine.command import bench
from tests.bench.engine.rollouts.beside_alone import ALONE, AT_ONCE, DRAWS, OURS, SILENT


def report_of(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert bench(["rollouts", "--json", *words]) == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return report


@pytest.mark.long
@pytest.mark.vllm
def test_every_draw_and_batch_is_compared_and_a_step_split(
    capsys: pytest.CaptureFixture[str], vllm_python: Path
) -> None:
    words = ["--batches", "--rows", "3", "--new-tokens", "4", "--repeats", "1", "--vllm-python", str(vllm_python)]
    report = report_of(capsys, *words)
    expected = [(AT_ONCE, 3, draw, engine) for draw in DRAWS for engine in (OURS, ALONE, SILENT)]
    assert [(row["model"], row["batch"], row["draw"], row["engine"]) for row in report["rows"]] == expected
    assert all(row["tokens_per_s"] > 0 and row["cpu_ms_a_step"] > 0 for row in report["rows"])
    ours = [row for row in report["rows"] if row["engine"] == OURS]
    assert all(0 < row["around_ms"] < row["cpu_ms_a_step"] and row["draw_ms"] > 0 for row in ours)


def test_missing_vllm_is_a_remark(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAMINAR_VLLM_PYTHON", "/nowhere/python")
    report = report_of(capsys)
    assert not report["rows"] and "make vllm" in report["remarks"][0]
