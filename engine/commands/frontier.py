"""`python -m engine simulate frontier`: the tokens/s of each design at equal staleness, by simulation.

If decoding is the limit, a design pays for versions with memory, repeated prefills or idle replicas, and its lead
decides how stale its answers are. So designs are compared at equal staleness: each runs with leads from a quarter of
what full replicas hold to three times that, and the table has its most tokens/s within each staleness.
"""

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from itertools import product
from statistics import fmean

from engine.sim.costs.devices import DEVICES
from engine.sim.costs.models import MODELS
from engine.sim.frontier.cells import Cell
from engine.sim.frontier.curves import DESIGNS, Point, most_within, points, requested_runs


def frontier(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m engine simulate frontier",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--devices", nargs="+", default=["H100", "H200"], choices=list(DEVICES))
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--contexts", nargs="+", type=int, default=[2_048, 8_192, 16_384], help="tokens, the mean")
    parser.add_argument("--every", nargs="+", type=float, default=[10, 30, 100, 300], help="seconds between updates")
    parser.add_argument("--designs", nargs="+", default=list(DESIGNS), choices=DESIGNS)
    parser.add_argument("--within", nargs="+", type=float, default=[0, 1, 2, 4, 8, 16, 32], help="mean staleness")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="print all points as one JSON object on the last line")
    wanted = parser.parse_args(arguments)
    cells = [
        Cell(device=device, model=model, context=context, every_s=every_s)
        for device, model, context, every_s in product(wanted.devices, wanted.models, wanted.contexts, wanted.every)
    ]
    done: list[Point] = []
    runs = list(requested_runs(cells, wanted.designs, wanted.seeds))
    for each in points(runs, processes=max(1, wanted.processes)):
        done.append(each)
        if not wanted.json and _is_last(each, runs, len(done)):
            _show_cell(each.asked.cell, done, wanted.within)
        _log(f"{len(done)}/{len(runs)} {each.asked.cell}: {each.asked.design}, {_lead(each)}: {_figures(each)}")
    if wanted.json:
        sys.stdout.write(json.dumps({"points": [asdict(each) for each in done]}) + "\n")
    return 0


def _is_last(each: Point, runs: Sequence[object], num: int) -> bool:
    return num == len(runs) or getattr(runs[num], "cell") != each.asked.cell  # noqa: B009


def _show_cell(cell: Cell, points: Sequence[Point], within: Sequence[float]) -> None:
    of_design: dict[str, dict[int, list[Point]]] = defaultdict(lambda: defaultdict(list))
    for each in points:
        if each.asked.cell == cell:
            of_design[each.asked.design][each.asked.seed].append(each)
    lines = [f"\n{cell}: tokens/s within a mean staleness of", f"{'':14}" + "".join(f"{each:>10g}" for each in within)]
    for design, by_seed in of_design.items():
        why_not = next(iter(by_seed.values()))[0].why_not
        cells = [_mean_within(list(by_seed.values()), staleness) for staleness in within]
        lines.append(f"{design:14}" + (why_not or "".join(f"{each:>10}" for each in cells)))
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


def _mean_within(by_seed: Sequence[Sequence[Point]], staleness: float) -> str:
    best = [most_within(each, staleness) for each in by_seed]
    kept = [each.tokens_per_s for each in best if each is not None]
    return f"{fmean(kept):,.0f}" if len(kept) == len(by_seed) else "-"


def _lead(each: Point) -> str:
    return "its own lead" if each.asked.lead is None else f"{each.asked.lead:g} x what replicas hold ahead"


def _figures(each: Point) -> str:
    return each.why_not or f"{each.tokens_per_s:,.0f} tokens/s at a staleness of {each.staleness:.2f}"


def _log(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
