"""Kept runs and their simulation: simulated runs are predicted exactly, and misses are reported."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.__main__ import main
from engine.scorecard.kept import About, KeptRun, keep_about, kept_runs
from engine.scorecard.recording import ended, trace_of, turn_overhead
from engine.scorecard.scores import calibrated, document, scores
from engine.scorecard.simulation import measured, setup_of, simulated
from engine.sim.recorded.fit import DeviceFit, model_of
from tests.engine.scorecard.made import PARAMETERS, WARM_UP, WithTools, keep, spec_of

KNOWN = DeviceFit(model_of(PARAMETERS), ())
"""All constants with their own values."""
OVERHEAD_S = 0.03


def made(schedule: str, waits: str, folder: Path, *, stretched: float = 1.0, **more: Any) -> KeptRun:
    spec = spec_of(schedule, waits, **more)
    run = KeptRun(folder=folder, spec=spec, warm_up=WARM_UP)
    setup = setup_of(run, WithTools(spec, overhead_s=OVERHEAD_S), KNOWN, longest=100)
    return keep(replace(setup, steps=spec.training.steps - WARM_UP), spec, folder, stretched=stretched)


@pytest.mark.parametrize("schedule", ["sync", "stream", "partial", "laminar"])
def test_simulated_run_is_reproduced_from_its_recording(schedule: str, tmp_path: Path) -> None:
    run = made(schedule, "tailed", tmp_path / "tailed-1", steps=14)
    again, first = simulated(run, trace_of(run, overhead_s=OVERHEAD_S), KNOWN), measured(run)
    # Except for the tokens of samples that had not ended with the recording.
    assert again.trajectories_per_s == pytest.approx(first.trajectories_per_s, rel=0.02)
    assert again.staleness_mean == pytest.approx(first.staleness_mean, rel=0.1, abs=0.01)
    assert again.trainer_waits == pytest.approx(first.trainer_waits, abs=0.03)


def test_recording_gives_each_sample_tokens_and_waits(tmp_path: Path) -> None:
    run = made("partial", "tailed", tmp_path / "tailed-1")
    drawn = WithTools(run.spec, overhead_s=OVERHEAD_S)
    trace, keys = trace_of(run, overhead_s=OVERHEAD_S), [each.key for each in ended(run.recordings)]
    assert len(keys) == len(set(keys)) == run.spec.training.steps * run.trajectories_per_step
    for key in keys:
        traced, work = trace.work(1, key), drawn.work(run.spec.training.seed, key)
        assert (traced.prompt, traced.turns) == (work.prompt, work.turns)
        assert [call.takes_s for call in traced.calls] == pytest.approx([call.takes_s for call in work.calls])
    overhead = turn_overhead(run)
    assert overhead.mean_s == pytest.approx(OVERHEAD_S) and overhead.num_turns == 2 * len(keys)
    assert overhead.spread_s == pytest.approx(0, abs=1e-9)


def test_scorecard_applies_bounds_and_lists_misses(tmp_path: Path) -> None:
    made("partial", "constant", tmp_path / "constant-partial-1", steps=14)
    for number in (1, 2):
        made("laminar", "tailed", tmp_path / f"tailed-laminar-{number}", steps=14)
    made("sync", "tailed", tmp_path / "tailed-sync-1", stretched=2.0)
    using = calibrated(tmp_path / "constant-partial-1")
    found = {(score.name, score.figure): score for score in scores(tmp_path, using)}
    assert {name for name, _ in found} == {"laminar, tailed waits", "sync, tailed waits"}
    right = found["laminar, tailed waits", "trajectories_per_s"]
    assert right.verdict == "within 15%" and right.measured.num == 2
    missed = found["sync, tailed waits", "trajectories_per_s"]
    assert missed.verdict == "missed" and missed.off_by == pytest.approx(1.0, rel=0.2)
    of_none = found["sync, tailed waits", "staleness_mean"]
    assert not of_none.verdict, "neither has any staleness, which does not count"
    assert replace(of_none, predicted=found["laminar, tailed waits", "staleness_mean"].predicted).verdict == "missed"
    written = document(tmp_path, using, list(found.values()), command="made by hand")
    assert "1 missed" in written and "| missed" in written and "busy" not in written
    assert "handover_rate" in written and "one model alone" in written


def test_scorecard_of_a_busy_machine_starts_with_a_warning(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    made("partial", "constant", folder / "constant-partial-1")
    made("sync", "tailed", folder / "tailed-sync-1")
    using = calibrated(folder / "constant-partial-1")
    found = scores(folder, using)
    (folder / "about.json").unlink()
    busy = About(warm_up=WARM_UP, machine={"load_before": 7.5})
    with pytest.raises(ValueError, match="not empty"):
        keep_about(folder, busy)
    for path in list(folder.iterdir()):
        path.rename(tmp_path / path.name)
    keep_about(folder, busy)
    assert "busy with other work (load 7.5): a trial, and no result" in document(folder, using, found, command="")


def test_command_writes_a_file_and_refuses_unscorable_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*words: str) -> tuple[int, str]:
        monkeypatch.setattr("sys.argv", ["engine", "simulate", "scorecard", *words])
        code = main()
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    folder, out = tmp_path / "runs", tmp_path / "SCORECARD.md"
    first = made("partial", "constant", folder / "constant-partial-1")
    asked = ("--runs", str(folder), "--calibrate", str(first.folder))
    code, said = run(*asked)
    assert code == 2 and "no run other than the one" in said
    made("sync", "tailed", folder / "tailed-sync-1")
    code, said = run(*asked, "--out", str(out))
    assert code == 0 and not said and "sync, tailed waits" in out.read_text()
    assert f"--out {out}" in out.read_text()
    code, said = run("--runs", str(folder))
    assert code == 2 and "--calibrate FOLDER/RUN" in said
    code, said = run("--runs", str(folder), "--calibrate", str(folder / "nothing"))
    assert code == 2 and "No such file" in said
    cut = made("sync", "tailed", folder / "tailed-sync-2")
    cut.facts.write_text("\n".join(cut.facts.read_text().splitlines()[:6]))
    code, said = run(*asked)
    assert code == 2 and "of 8 steps were trained" in said


def test_runs_of_another_environment_have_no_trace(tmp_path: Path) -> None:
    run = made("sync", "tailed", tmp_path / "tailed-sync-1")
    other = run.spec.model_copy(
        update={"environment": run.spec.environment.model_copy(update={"name": "running_sums"})}
    )
    with pytest.raises(ValueError, match="tool_sums"):
        trace_of(replace(run, spec=other), overhead_s=0.0)


def test_the_runs_of_a_folder_are_found_in_order(tmp_path: Path) -> None:
    for name in ("tailed-sync-2", "tailed-sync-1"):
        made("sync", "tailed", tmp_path / name, steps=6)
    assert [run.folder.name for run in kept_runs(tmp_path)] == ["tailed-sync-1", "tailed-sync-2"]
    assert [run.num_steps for run in kept_runs(tmp_path)] == [2, 2]
