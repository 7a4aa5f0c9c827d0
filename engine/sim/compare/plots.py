"""Plots of a comparison's report as Plotly figures, and a self-contained page of them.

speed_up    times `sync`, by devices, a panel for each workload and model
staleness   times `sync` against the mean staleness, at the most devices
ahead       by how much each design of ours is ahead of `paper` and of `inflight`, cell by cell
published   our figures over the published ones: 1 is a hit; fitted figures are hollow

Invariant: every point is a figure of the report; only its position is computed here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import product
from json import dumps
from typing import Any, Final

from engine.sim.compare.contestants import OURS

Report = dict[str, Any]
Trace = dict[str, Any]

LOOKS: Final = {
    "sync": ("#6b6b6b", "circle"),
    "sync_split": ("#a8a8a8", "circle-open"),
    "one_step": ("#8c564b", "square"),
    "stream": ("#a6a61f", "square-open"),
    "bounded": ("#17a2b8", "diamond"),
    "partial": ("#2a8f2a", "triangle-up"),
    "inflight": ("#e8710a", "triangle-down"),
    "paper": ("#8250c4", "cross"),
    "laminar": ("#1a5fb4", "star"),
    "laminar_cap": ("#6baed6", "star-triangle-up"),
    "laminar_delta": ("#d01c8b", "star-open"),
    "laminar_delta_cap": ("#f1a5d3", "star-triangle-up-open"),
}
RIVALS: Final = ("paper", "inflight")
GAP: Final = 0.07
"""The space between panels, as a share of the width; it holds the axes' titles."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    name: str
    caption: str
    data: Sequence[Trace]
    layout: dict[str, Any]


def figures(report: Report) -> list[Figure]:
    return [_speed_up(report), _staleness(report), _ahead(report), _published(report)]


def page(report: Report, plotly: str) -> str:
    """`plotly`: the library's source. With `#name` in its URL the page shows only that figure."""
    shown = figures(report)
    program = report["program"]
    constants = program["constants"]
    summary = (
        f"{len(report['rows'])} cells, {program['runs']} runs, {program['events']:,} events. Constants of commit "
        f"{constants['commit']}, changed since: {len(constants['changes']) or 'nothing'}."
    )
    sections = "\n".join(
        f'<figure id="{each.name}"><div></div><figcaption>{escape(each.caption)}</figcaption></figure>'
        for each in shown
    )
    drawn = dumps({each.name: {"data": each.data, "layout": each.layout} for each in shown}).replace("</", "<\\/")
    return PAGE.format(
        summary=escape(summary), sections=sections, plotly=plotly.replace("</script", "<\\/script"), drawn=drawn
    )


PAGE: Final = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Schedules compared</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; margin: 1rem auto; max-width: 1180px; color: #1b1b1b; background: #fff }}
figure {{ margin: 0 0 2rem }} figcaption {{ color: #444; padding: 0 1rem }}
body.single h1, body.single p, body.single figure:not(.shown) {{ display: none }} body.single {{ margin: 0 auto }}
</style>
<h1>Schedules compared</h1>
<p>{summary}</p>
{sections}
<script>{plotly}</script>
<script>
const drawn = {drawn};
const only = location.hash.slice(1);
document.body.classList.toggle("single", only in drawn);
for (const [name, figure] of Object.entries(drawn)) {{
  if (only in drawn && name !== only) continue;
  const place = document.getElementById(name);
  place.classList.add("shown");
  Plotly.newPlot(place.firstElementChild, figure.data, figure.layout, {{displayModeBar: false, responsive: true}});
}}
</script>
</html>
"""


def _speed_up(report: Report) -> Figure:
    rows = [row for row in report["rows"] if row["speedup_over_sync"] is not None]
    halves = {
        (each["workload"], each["model"], each["gpus"], each["schedule"]): (each["ci95"][1] - each["ci95"][0]) / 2
        for each in report["ratios"]
        if each["over"] == "sync" and each["ci95"] is not None
    }
    panels, data = _panels(rows), []
    for number, of_panel in enumerate(panels.values(), start=1):
        for schedule in dict.fromkeys(row["schedule"] for row in of_panel):
            line = sorted((row for row in of_panel if row["schedule"] == schedule), key=lambda row: int(row["gpus"]))
            errors = [halves.get((row["workload"], row["model"], row["gpus"], schedule), 0.0) for row in line]
            trace = _trace(schedule, number, [row["gpus"] for row in line], [row["speedup_over_sync"] for row in line])
            data.append({**trace, "mode": "lines+markers", "error_y": {"array": errors, "thickness": 1}})
    ticks = sorted({row["gpus"] for row in rows})
    layout = _grid(panels, x={"type": "log", "tickvals": ticks, "ticktext": [str(each) for each in ticks]})
    _entitle(layout, x="GPUs", y="times sync")
    caption = "Tokens a second over those of sync on as many GPUs; bars: 95 % of paired seeds, for paper and ours."
    return Figure(name="speed_up", caption=caption, data=data, layout=layout)


def _staleness(report: Report) -> Figure:
    rows = [row for row in report["rows"] if row["speedup_over_sync"] is not None]
    most = max((row["gpus"] for row in rows), default=0)
    panels, data = _panels([row for row in rows if row["gpus"] == most]), []
    for number, of_panel in enumerate(panels.values(), start=1):
        for row in of_panel:
            trace = _trace(row["schedule"], number, [row["staleness_mean"]], [row["speedup_over_sync"]])
            data.append({**trace, "mode": "markers", "marker": {**trace["marker"], "size": 12}})
    layout = _grid(panels, x={})
    _entitle(layout, x="mean staleness, versions", y="times sync")
    caption = f"On {most} GPUs: speed against the mean staleness of what is trained. Up and to the left is better."
    return Figure(name="staleness", caption=caption, data=data, layout=layout)


def _ahead(report: Report) -> Figure:
    data: list[Trace] = []
    for ours, over in product(OURS, RIVALS):
        found = [each for each in report["ratios"] if (each["schedule"], each["over"]) == (ours, over)]
        if not found:
            continue
        halves = [0.0 if each["ci95"] is None else (each["ci95"][1] - each["ci95"][0]) / 2 for each in found]
        cells = [f"{each['workload']} {each['model']} {each['gpus']}" for each in found]
        trace = _trace(over, 1, [each["mean"] for each in found], cells)
        marker = {**trace["marker"], "symbol": LOOKS[ours][1]}
        drawn = {"name": f"{ours} over {over}", "mode": "markers", "marker": marker, "legendgroup": f"{ours}/{over}"}
        data.append({**trace, **drawn, "error_x": {"array": halves, "thickness": 1}})
    layout = _wide(num_rows=len({cell for trace in data for cell in trace["y"]}), x="ours, times the other one")
    caption = "Our designs' tokens a second over those of paper and of inflight; bars: 95 % of paired seeds. 1: alike."
    return Figure(name="ahead", caption=caption, data=data, layout=layout)


def _published(report: Report) -> Figure:
    data: list[Trace] = []
    for kind, symbol in (("checked", "circle"), ("fitted", "circle-open")):
        found = [each for each in report["published"] if each["kind"] == kind]
        middle = [sum(each["ratio"]) / 2 for each in found]
        halves = [(each["ratio"][1] - each["ratio"][0]) / 2 for each in found]
        names = [f"{each['source']}: {each['what']}" for each in found]
        look = {"color": "#1a5fb4" if kind == "checked" else "#6b6b6b", "symbol": symbol, "size": 9}
        data.append(
            {"type": "scatter", "x": middle, "y": names, "name": kind, "mode": "markers", "marker": look,
             "error_x": {"array": halves, "thickness": 2}}
        )  # fmt: skip
    layout = _wide(num_rows=len(report["published"]), x="ours, times the published figure")
    layout["margin"]["l"] = 360
    caption = "Our figures over the published ones. A bar is the range over all cells that the figure could be of."
    return Figure(name="published", caption=caption, data=data, layout=layout)


# ── panels ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _panels(rows: Sequence[dict[str, Any]]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Row by row: workloads down, models across."""
    panels: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        panels.setdefault((row["workload"], row["model"]), []).append(row)
    return panels


def _trace(schedule: str, panel: int, x: Sequence[Any], y: Sequence[Any]) -> Trace:
    color, symbol = LOOKS.get(schedule, ("#000000", "x"))
    return {
        "type": "scatter", "x": x, "y": y, "name": schedule, "legendgroup": schedule, "showlegend": panel == 1,
        "xaxis": _axis("x", panel), "yaxis": _axis("y", panel), "line": {"color": color, "width": 2},
        "marker": {"color": color, "symbol": symbol, "size": 8},
    }  # fmt: skip


def _grid(panels: dict[tuple[str, str], Any], *, x: dict[str, Any]) -> dict[str, Any]:
    workloads = list(dict.fromkeys(workload for workload, _ in panels))
    models = list(dict.fromkeys(model for _, model in panels))
    layout = _plain(height=120 + 330 * max(1, len(workloads)))
    for number, (workload, model) in enumerate(panels, start=1):
        across, down = _span(models.index(model), len(models)), _span(workloads.index(workload), len(workloads))
        top, bottom = 1 - down[0], 1 - down[1]
        layout[f"xaxis{number}"] = {**x, "domain": across, "anchor": _axis("y", number), "gridcolor": "#e6e6e6"}
        layout[f"yaxis{number}"] = {
            "domain": [bottom, top], "anchor": _axis("x", number), "rangemode": "tozero", "gridcolor": "#e6e6e6",
        }  # fmt: skip
        layout["annotations"].append(_words(f"{workload}, {model}", x=sum(across) / 2, y=top))
    return layout


def _span(at: int, num: int) -> list[float]:
    width = (1 - GAP * (num - 1)) / num
    return [at * (width + GAP), min(1.0, at * (width + GAP) + width)]


def _axis(letter: str, panel: int) -> str:
    return letter if panel == 1 else f"{letter}{panel}"


def _words(text: str, *, x: float, y: float) -> dict[str, Any]:
    return {"text": f"<b>{text}</b>", "x": x, "y": y, "xref": "paper", "yref": "paper", "yanchor": "bottom",
            "xanchor": "center", "showarrow": False}  # fmt: skip


def _entitle(layout: dict[str, Any], *, x: str, y: str) -> None:
    """Titles the axes below the lowest panels and left of the leftmost."""
    panels = [name.removeprefix("xaxis") for name in layout if name.startswith("xaxis")]
    for number in panels:
        across, down = layout[f"xaxis{number}"], layout[f"yaxis{number}"]
        is_lowest = not any(
            layout[f"xaxis{other}"]["domain"] == across["domain"] and layout[f"yaxis{other}"]["domain"] < down["domain"]
            for other in panels
        )
        if is_lowest:
            across["title"] = {"text": x}
        if across["domain"][0] == 0:
            down["title"] = {"text": y}


def _wide(*, num_rows: int, x: str) -> dict[str, Any]:
    """One panel with labels on its side, and a line at 1."""
    layout = _plain(height=160 + 24 * num_rows)
    layout["xaxis"] = {"title": {"text": x}, "gridcolor": "#e6e6e6", "zeroline": False}
    layout["yaxis"] = {"autorange": "reversed", "gridcolor": "#f2f2f2", "dtick": 1}
    layout["margin"]["l"] = 140
    layout["shapes"] = [{"type": "line", "x0": 1, "x1": 1, "yref": "paper", "y0": 0, "y1": 1, "line": {"dash": "dot"}}]
    return layout


def _plain(*, height: int) -> dict[str, Any]:
    return {
        "height": height, "width": 1160, "paper_bgcolor": "#fff", "plot_bgcolor": "#fff", "annotations": [],
        "margin": {"l": 60, "r": 20, "t": 80, "b": 60},
        "legend": {"orientation": "h", "yref": "container", "y": 1, "yanchor": "top"},
        "font": {"family": "system-ui, sans-serif", "size": 13},
    }  # fmt: skip
