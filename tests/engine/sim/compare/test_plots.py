"""The page of plots shows exactly the report's figures, is self-contained, and renders in a browser."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from engine.__main__ import main
from engine.commands.plots import BROWSERS, PLOTLY
from engine.sim.compare.grid import Extent
from engine.sim.compare.many import run_on
from engine.sim.compare.plots import figures, page
from engine.sim.compare.report import report

TINY = Extent(
    workloads=("math", "tools"),
    models=("7B", "72B"),
    gpus=(8, 16),
    schedules=("sync", "inflight", "paper", "laminar"),
    seeds=(1, 2),
    steps=2,
    warm_steps=1,
    most_warm_steps=1,
    groups_per_step=4,
    num_splits=1,
)
pytestmark = pytest.mark.long
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    told: dict[str, Any] = json.loads(json.dumps(report(run_on(TINY, processes=1), TINY)))
    return told


def test_every_row_that_fits_is_a_point_and_no_other_is(found: dict[str, Any]) -> None:
    speed_up = figures(found)[0]
    points = sorted(
        (trace["name"], x, y) for trace in speed_up.data for x, y in zip(trace["x"], trace["y"], strict=True)
    )
    rows = [row for row in found["rows"] if row["fits"]]
    assert len(rows) < len(found["rows"]), "72B does not fit here"
    assert points == sorted((row["schedule"], row["gpus"], row["speedup_over_sync"]) for row in rows)
    assert {trace["xaxis"] for trace in speed_up.data} == {"x", "x2"}, "a panel for each workload"


def test_axes_are_named_below_the_lowest_panels_alone(found: dict[str, Any]) -> None:
    layout = figures(found)[0].layout
    assert layout["yaxis1"]["domain"] > layout["yaxis2"]["domain"], "math above tools"
    assert "title" not in layout["xaxis1"] and layout["xaxis2"]["title"] == {"text": "GPUs"}


def test_each_schedule_is_named_once_however_many_panels(found: dict[str, Any]) -> None:
    shown = [trace["name"] for trace in figures(found)[0].data if trace["showlegend"]]
    assert sorted(shown) == ["inflight", "laminar", "paper", "sync"]


def test_laminar_is_shown_over_each_rival_in_every_cell(found: dict[str, Any]) -> None:
    ahead = next(each for each in figures(found) if each.name == "ahead")
    assert [trace["name"] for trace in ahead.data] == ["laminar over paper", "laminar over inflight"]
    assert all(trace["y"] == ["math 7B 8", "math 7B 16", "tools 7B 8", "tools 7B 16"] for trace in ahead.data)


def test_every_published_figure_is_a_point(found: dict[str, Any]) -> None:
    published = next(each for each in figures(found) if each.name == "published")
    points = [name for trace in published.data for name in trace["y"]]
    assert sorted(points) == sorted(f"{each['source']}: {each['what']}" for each in found["published"])


def test_page_loads_nothing_and_names_its_constants(found: dict[str, Any]) -> None:
    written = page(found, "/* the library */</script>")
    assert not re.search(r"<(?:link|img|iframe)|\ssrc=|@import|url\(", written)
    assert written.count("</script>") == 2, "a library that ends a script does not end ours"
    assert found["program"]["constants"]["commit"] in written


def test_the_command_writes_page_and_pictures(
    tmp_path: Path, found: dict[str, Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "report.json"
    kept.write_text(f"a line before it\n{json.dumps(found)}\n")
    monkeypatch.setattr("sys.argv", ["engine", "simulate", "plots", str(kept), str(tmp_path / "drawn")])
    assert main() == 0
    written = [Path(line) for line in capsys.readouterr().out.splitlines()]
    assert written[0].name == "plots.html" and PLOTLY.read_text()[:200] in written[0].read_text()
    if any(shutil.which(name) for name in BROWSERS):
        assert [path.stem for path in written[1:]] == [each.name for each in figures(found)]
        assert all(path.read_bytes().startswith(PNG) for path in written[1:])


@pytest.mark.parametrize("text", ["", "no json", "{}", "[]"])
def test_other_file_than_a_report_is_refused(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "report.json"
    kept.write_text(text)
    for path in (kept, tmp_path / "is not there"):
        monkeypatch.setattr("sys.argv", ["engine", "simulate", "plots", str(path), str(tmp_path / "drawn")])
        assert main() == 2
        assert str(path) in capsys.readouterr().err
