"""`python -m engine fit`: a table, or the arithmetic of one job and a verdict."""

import json
from pathlib import Path
from typing import Any

import pytest

from engine.commands.fit import fit


@pytest.fixture
def spec_file(tmp_path: Path) -> Path:
    return written(tmp_path, trainer={"compute_dtype": "bfloat16"})


def written(folder: Path, **parts: Any) -> Path:
    file = folder / "spec.json"
    file.write_text(json.dumps({"name": "x", **parts}))
    return file


def test_without_a_spec_it_prints_what_fits(capsys: pytest.CaptureFixture[str]) -> None:
    assert fit([]) == 0
    shown = capsys.readouterr().out
    for word in ("Qwen3-32B", "Qwen3-30B-A3B", "64", "141 GB, 128k"):
        assert word in shown


def test_presets_of_each_model_and_pool_are_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert fit(["--presets", "--device-gb", "80"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows[0][0] == "model" and len(rows) == 1 + 4 * 6
    assert ["Qwen3-8B", "8", "8", "4", "4", "of", "1", "vllm", "64", "-", "yes"] in rows


def test_job_that_fits_is_printed_term_by_term(spec_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fit([str(spec_file), "--device-gb", "80"]) == 0
    shown = capsys.readouterr().out
    for word in (
        "weights, float32",
        "moments",
        "KV cache",
        "the relay's versions",
        "Set LAMINAR_RAY_SHM=",
        "It fits devices of 80 GB.",
    ):
        assert word in shown


def test_job_that_does_not_fit_gets_advice(spec_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fit([str(spec_file), "--device-gb", "80", "--model", "Qwen3-8B"]) == 1
    shown = capsys.readouterr().out
    assert "The trainer's device needs" in shown and "and has 80.0 GB." in shown


def test_wrong_input_prints_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fit([str(tmp_path / "none.json")]) == 2
    assert "No such file" in capsys.readouterr().err
    assert fit([str(written(tmp_path, rollout={"replicas": 0}))]) == 2
    assert "replicas" in capsys.readouterr().err
    assert fit([str(written(tmp_path, model={"source": str(tmp_path)}))]) == 2
    assert "config.json" in capsys.readouterr().err
