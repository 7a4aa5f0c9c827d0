"""`python -m engine simulate paper | CLUSTER.json | plots | …`: runs on other devices, priced by cost models.

paper         the schedules compared, in the set-up of the Laminar paper; --quick: a small part of it; --keep FILE:
              keep finished cells and resume from them
sweep         the comparison again with each assumed constant at both ends of its sweep: a range, and whether the order
              of schedules survives; --quick and --keep as with paper
CLUSTER.json  one run of your own set-up
calibration   every constant with its origin, and the residuals of the published figures; --calibrate FACTS: constants
              of a device, fitted to the facts of a live run on it (DIR/facts.jsonl of `python -m engine run`)
dora          a published figure that the formulas miss, taken apart
scorecard     live runs kept by `bench schedules --keep FOLDER`, each simulated with the same waits and tokens, and with
              constants of another one of them: --runs FOLDER, --calibrate FOLDER/RUN, --out FILE
frontier      tokens/s of each design at equal staleness, if decoding is the limit; for its options: frontier -h
plots         REPORT.json FOLDER: a page of plots of the output of `paper --json`, and a picture of each
"""

import argparse
import json
import sys
from pathlib import Path

from pydantic import ValidationError

from engine.commands.frontier import frontier
from engine.commands.plots import plots
from engine.scorecard.scores import calibrated, document, scores
from engine.sim.compare import dora
from engine.sim.compare.checks import checked
from engine.sim.compare.cluster import ClusterFile, simulated
from engine.sim.compare.grid import QUICK, WHOLE, Extent
from engine.sim.compare.kept import Kept
from engine.sim.compare.many import Progress, run_on
from engine.sim.compare.report import report
from engine.sim.compare.sweep import sweep
from engine.sim.costs.calibration import CONSTANTS, FITS, TARGETS
from engine.sim.costs.devices import DEVICES
from engine.sim.recorded.facts import observed, read_facts
from engine.sim.recorded.fit import as_document, fit
from engine.spec.settings.invalid_fields import error_lines


def simulate(arguments: list[str]) -> int:
    if arguments[:1] == ["frontier"]:
        return frontier(arguments[1:])
    parser = argparse.ArgumentParser(prog="python -m engine simulate", description=__doc__)
    parser.add_argument(
        "what",
        help="paper, sweep, calibration, dora, scorecard, frontier, plots, or a file that describes a cluster",
    )
    parser.add_argument("files", type=Path, nargs="*", help="with plots: a report and an output folder")
    parser.add_argument("--json", action="store_true", help="print one JSON object on the last line")
    parser.add_argument("--quick", action="store_true", help="with paper: 7B, 16 devices, a sixteenth of the batch")
    parser.add_argument("--processes", type=int, default=2, metavar="N", help="with paper: number of processes (2)")
    parser.add_argument(
        "--keep", type=Path, metavar="FILE", help="with paper: keep finished cells here and resume from them"
    )
    parser.add_argument(
        "--calibrate", type=Path, metavar="FACTS", help="facts of a live run; with scorecard the run's folder"
    )
    parser.add_argument("--runs", type=Path, metavar="FOLDER", help="with scorecard: folder of recorded runs")
    parser.add_argument("--out", type=Path, metavar="FILE", help="with scorecard: write to this file")
    parser.add_argument("--device", default="CPU", choices=list(DEVICES), help="the device of the live run (CPU)")
    parser.add_argument("--tensor-parallel", type=int, default=1, metavar="N", help="its devices per replica (1)")
    parser.add_argument("--training", type=int, default=1, metavar="N", help="its training devices (1)")
    args = parser.parse_args(arguments)
    if len(args.files) != (2 if args.what == "plots" else 0):
        parser.error("plots needs a report and a folder; other commands take no files")
    match args.what:
        case "calibration":
            return _calibration() if args.calibrate is None else _calibrate(args)
        case "dora":
            return _dora()
        case "paper":
            return _paper(args)
        case "scorecard":
            return _scorecard(args)
        case "sweep":
            return _sweep(args)
        case "plots":
            return plots(*args.files)
        case _:
            return _cluster(Path(args.what))


def _paper(args: argparse.Namespace) -> int:
    extent = QUICK if args.quick else WHOLE
    kept = None if args.keep is None else Kept(args.keep, extent)
    grid = run_on(extent, processes=max(1, args.processes), kept=kept, on_cell=_print_cell)
    result = report(grid, extent, checked=[] if args.quick else list(checked(grid, processes=max(1, args.processes))))
    if args.json:
        _show(json.dumps(result))
        return 0
    for name, its in result["summary"].items():
        _show(f"{name}: {its['design']}")
        for other, figures in its["over"].items():
            _show(f"  over {other:12} {figures['mean']:5.2f} x in the mean, {figures['max']:5.2f} x at most")
    return 0


def _sweep(args: argparse.Namespace) -> int:
    def kept(extent: Extent) -> Kept | None:
        return None if args.keep is None else Kept(args.keep, extent)

    extent = QUICK if args.quick else WHOLE
    ranges = sweep(extent, processes=max(1, args.processes), kept=kept, on_cell=_print_cell)
    if args.json:
        _show(json.dumps(ranges))
        return 0
    for row in ranges["rows"]:
        overturned = ", ".join(
            f"{one} over {other} ({' '.join(map(str, at))})" for at, (one, other) in row["overturned"]
        )
        _show(f"{row['constant']:16} x {row['factor']:4g}  overturned: {overturned or 'nothing'}")
    for name, (least, most) in ranges["over_sync"].items():
        _show(f"{name:12} {least:5.2f} to {most:5.2f} x sync")
    return 0


def _print_cell(progress: Progress) -> None:
    """Prints each cell on standard error as it ends: the whole grid takes long."""
    ran, cell = progress.ran, progress.ran.cell
    done = f"{progress.num_done:3}/{progress.num_cells}{' kept' if progress.was_kept else ''}"
    where = f"{done:12} {cell.workload:5} {cell.model:>3} {cell.gpus:5} {cell.schedule:10}"
    if ran.setup is None:
        _log(f"{where} does not fit: {ran.why_not}")
        return
    first, split = ran.outcomes[0], ran.setup
    _log(
        f"{where} {first.tokens_per_s:12,.0f} tokens/s  staleness {first.staleness_mean:4.1f}  "
        f"{split.train_devices} train, {split.num_replicas} replicas",
    )


def _cluster(path: Path) -> int:
    try:
        outcome = simulated(ClusterFile.model_validate_json(path.read_bytes()))
    except OSError as error:
        _log(f"{path}: {error.strerror}")
        return 2
    except ValidationError as error:
        for line in error_lines(error, whole="cluster"):
            _log(line)
        return 2
    except ValueError as error:
        _log(str(error))
        return 2
    _show(json.dumps(outcome))
    return 0


def _calibration() -> int:
    left = {fit.constant.name: fit.degrees_left for fit in FITS}
    for constant in CONSTANTS:
        sweep = f" × {constant.sweep[0]:g} to × {constant.sweep[1]:g}" if constant.origin == "assumed" else ""
        over = f", {left[constant.name]} degrees of freedom left" if constant.name in left else ""
        _show(f"{constant.name:16} {constant.value:<12g} {constant.unit:32} {constant.origin}{sweep}{over}")
        _show(f"{'':16} {constant.source}")
    _show("")
    for target in TARGETS:
        fixes = f"fixes {target.fixes.name}" if target.fixes is not None else "checks"
        figures = f"{target.published:12,.4g} {target.modelled():12,.4g} {target.off_by:+7.1%}"
        _show(f"{target.what:40} {figures}  {target.unit:7} {fixes}")
    return 0


def _calibrate(args: argparse.Namespace) -> int:
    try:
        seen = observed(read_facts(args.calibrate))
        num_devices, training = max(1, args.tensor_parallel), max(1, args.training)
        device_fit = fit(seen, DEVICES[args.device], tensor_parallel=num_devices, training=training)
    except OSError as error:
        _log(f"{args.calibrate}: {error.strerror}")
        return 2
    except ValueError as error:
        _log(str(error))
        return 2
    if args.json:
        _show(json.dumps({"device": args.device, "constants": [as_document(each) for each in device_fit.constants]}))
        return 0
    for each in device_fit.constants:
        how = f"± {each.error:.0%}, {each.num_observations} observations, residual {each.residual:.1%}"
        fitted = f"unchanged: {each.why_not}" if each.why_not else how
        _show(f"{each.constant.name:16} {each.value:<12.4g} {each.constant.unit:32} {fitted}")
    return 0


def _scorecard(args: argparse.Namespace) -> int:
    if args.runs is None or args.calibrate is None:
        _log("scorecard needs --runs FOLDER and --calibrate FOLDER/RUN")
        return 2
    out = "" if args.out is None else f" --out {args.out}"
    command = f"python -m engine simulate scorecard --runs {args.runs} --calibrate {args.calibrate}{out}"
    try:
        using = calibrated(args.calibrate)
        text = document(args.runs, using, scores(args.runs, using), command=command)
    except OSError as error:
        _log(f"{error.filename}: {error.strerror}")
        return 2
    except ValueError as error:
        _log(str(error))
        return 2
    if args.out is None:
        _show(text)
    else:
        args.out.write_text(text)
    return 0


def _dora() -> int:
    _show(f"{'rollouts of a sync step, published':34} {dora.PUBLISHED_S:6.0f} s")
    for each in dora.variants():
        figures = f"{each.seconds:6.0f} s, {each.of_published:4.2f} of it; half of the tokens by {each.half_s:4.0f} s"
        _show(f"{each.what:34} {figures}; a token alone {1e3 * each.last_step_s:4.1f} ms")
    _show(
        f"{'a token, if the longest answer began at once and lasted that long':64} {1e3 * dora.needed_step_s():4.1f} ms"
    )
    return 0


def _show(line: str) -> None:
    sys.stdout.write(f"{line}\n")


def _log(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
