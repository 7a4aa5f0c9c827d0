"""`python -m engine run`: an invalid spec prints a sentence, not a traceback. `bench`: absent from an image."""

import subprocess
import sys
from pathlib import Path

import pytest

import engine
from engine.__main__ import main


def command(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["engine", "run", *arguments])
    return main()


def test_missing_spec_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(monkeypatch, str(tmp_path / "none.json"), "--out", str(tmp_path / "out")) == 2
    assert "No such file" in capsys.readouterr().err


def test_a_spec_with_mistakes_names_each_field(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "spec.json"
    file.write_text('{"name": "x", "rollout": {"replicas": 0}, "colour": "red"}')
    assert command(monkeypatch, str(file), "--out", str(tmp_path / "out")) == 2
    shown = capsys.readouterr().err
    assert "rollout.replicas" in shown and "colour" in shown
    assert not (tmp_path / "out").exists()


def test_run_is_never_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "spec.json"
    file.write_text('{"name": "x"}')
    (tmp_path / "facts.jsonl").write_text("kept\n")
    assert command(monkeypatch, str(file), "--out", str(tmp_path)) == 2
    assert "already holds a run" in capsys.readouterr().err
    assert (tmp_path / "facts.jsonl").read_text() == "kept\n"


def test_bench_without_source_tree_is_refused(tmp_path: Path) -> None:
    (tmp_path / "engine").symlink_to(Path(engine.__file__).parent)
    script = "import sys; from engine.commands.bench import bench; sys.exit(bench(['decode']))"
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env={}, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "the benchmarks are not part of an image; run this command in a checkout of Laminar\n"
