"""The report: a row for each cell, and by how much the paper's design and ours are ahead of the others.

    {"program": …, "published": […], "ratios": […], "standings": {…}, "rows": […], "summary": {…}}

Ratios are of paired seeds (`ratios`). The summary's mean and most are over the cells that both fit in, its interval is
over seeds. `program` describes the run: the constants' commit, later changes of constants, the simulated amount.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import mean
from typing import Any

from engine.sim.compare.contestants import CONTESTANTS, OURS
from engine.sim.compare.grid import Cell, Extent, Ran, tokens_per_s
from engine.sim.compare.published import Published, from_grid, from_targets
from engine.sim.compare.ratios import by_seed, cell_of, interval, ratios, standings
from engine.sim.costs.calibration import CONSTANTS
from engine.sim.costs.frozen import FREEZES, fingerprint


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    workload: str
    model: str
    gpus: int
    schedule: str
    fits: bool
    why_not: str
    seeds: int
    tokens_per_s: float | None
    tokens_per_s_ci95: tuple[float, float] | None
    speedup_over_sync: float | None
    staleness_mean: float | None
    staleness_max: int | None
    staleness_of_tokens: float | None
    kv_used: float | None
    generation_share: float | None
    rollout_wait_share: float | None
    actor_stall_s: float | None
    split: dict[str, int] | None


def report(grid: Sequence[Ran], extent: Extent, *, checked: Sequence[Published] = ()) -> dict[str, Any]:
    """`checked`: published figures that needed their own runs."""
    by_cell = {ran.cell: ran for ran in grid}
    there = {ran.cell.schedule for ran in grid}
    named = [name for name in ("paper", *OURS) if name in there]
    ahead: dict[str, Any] = {name: _ahead(name, by_cell) for name in named}
    best = max((name for name in OURS if name in ahead), key=lambda name: _scale(name, by_cell), default=None)
    summary = {name: its for name, its in ahead.items() if name in ("paper", "laminar")}
    if best is not None:
        summary["best"] = ahead[best]
    every_ratio = ratios(grid, named)
    return {
        "program": _program(grid, extent),
        "published": [each.as_document() for each in (*from_grid(grid), *checked, *from_targets())],
        "ratios": [asdict(ratio) for ratio in every_ratio],
        "standings": standings(every_ratio),
        "rows": [asdict(_row(ran, by_cell)) for ran in grid],
        "summary": summary,
    }


def _program(grid: Sequence[Ran], extent: Extent) -> dict[str, Any]:
    outcomes = [outcome for ran in grid for outcome in ran.outcomes]
    return {
        "constants": {
            "commit": FREEZES[0].commit,
            "changes": [asdict(freeze) for freeze in FREEZES[1:]],
            "fingerprint": fingerprint(CONSTANTS),
            "factors": dict(extent.book.factors),
        },
        "steps": extent.steps,
        "groups_per_step": extent.groups_per_step,
        "seeds": list(extent.seeds),
        "runs": len(outcomes),
        "events": sum(outcome.num_events for outcome in outcomes),
    }


def _row(ran: Ran, by_cell: dict[Cell, Ran]) -> Row:
    cell, setup, outcomes = ran.cell, ran.setup, ran.outcomes
    speedups = by_seed(ran, by_cell.get(cell_of(cell, "sync")))
    return Row(
        workload=cell.workload,
        model=cell.model,
        gpus=cell.gpus,
        schedule=cell.schedule,
        fits=setup is not None,
        why_not=ran.why_not,
        seeds=len(outcomes),
        tokens_per_s=mean(each.tokens_per_s for each in outcomes) if outcomes else None,
        tokens_per_s_ci95=interval([each.tokens_per_s for each in outcomes]),
        speedup_over_sync=mean(speedups) if speedups else None,
        staleness_mean=mean(each.staleness_mean for each in outcomes) if outcomes else None,
        staleness_max=max((each.staleness_max for each in outcomes), default=None),
        staleness_of_tokens=mean(each.staleness_of_tokens for each in outcomes) if outcomes else None,
        kv_used=mean(each.kv_used for each in outcomes) if outcomes else None,
        generation_share=mean(each.generation_share for each in outcomes) if outcomes else None,
        rollout_wait_share=mean(each.rollout_wait_share for each in outcomes) if outcomes else None,
        actor_stall_s=None if setup is None else setup.stall_s,
        split=None
        if setup is None
        else {"training": setup.train_devices, "rollout": setup.rollout_devices, "tensor_parallel": setup.tp},
    )


def _ahead(name: str, by_cell: dict[Cell, Ran]) -> dict[str, Any]:
    over: dict[str, Any] = {}
    for other in dict.fromkeys(cell.schedule for cell in by_cell):
        cells = [
            by_seed(ran, by_cell.get(cell_of(cell, other))) for cell, ran in by_cell.items() if cell.schedule == name
        ]
        cells = [ratios for ratios in cells if ratios]
        if other == name or not cells:
            continue
        of_seeds = [mean(of_seed) for of_seed in zip(*cells, strict=False)]
        over[other] = {
            "mean": mean(map(mean, cells)),
            "max": max(map(mean, cells)),
            "ci95": interval(of_seeds),
        }
    return {"over": over, "scaling_efficiency": _scaling(name, by_cell), "design": CONTESTANTS[name].design}


def _scaling(name: str, by_cell: dict[Cell, Ran]) -> dict[str, float]:
    """For each workload and model: tokens/s per device at the most devices, over those at the fewest."""
    scaling = {}
    for workload, model in dict.fromkeys((cell.workload, cell.model) for cell in by_cell):
        cells = [
            (cell.gpus, tokens_per_s(ran) / cell.gpus)
            for cell, ran in by_cell.items()
            if (cell.workload, cell.model, cell.schedule) == (workload, model, name) and ran.outcomes
        ]
        if len(cells) > 1:
            scaling[f"{workload} {model}"] = max(cells)[1] / min(cells)[1]
    return scaling


def _scale(name: str, by_cell: dict[Cell, Ran]) -> float:
    return sum(tokens_per_s(ran) for cell, ran in by_cell.items() if cell.schedule == name and ran.outcomes)
