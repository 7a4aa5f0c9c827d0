"""Repack on and off, on the same heavy-tailed trace; and what one move costs with its KV cache and by re-prefill.

The first rows are whole runs of the laminar schedule with one version a replica: only there does a replica drain
before it takes newer weights, so that emptying it earlier gains something. Then sequences move between two engines in
this process: export, import and the first token after it, so that these rows hold no network. The last rows are of
pages alone, on their way to another replica of this machine: by the memory that both see, and by a link.
"""

import argparse
import tempfile
import time
from functools import partial
from pathlib import Path

import torch

from engine.inference.port import SamplingParams, SequenceRequest
from engine.inference.torch_engine import TorchRolloutEngine
from engine.scorecard.tables import Row, Spread, rounded
from tests.bench.engine.repack_pages import page_rows
from tests.bench.engine.report import Report, in_turns
from tests.bench.engine.rollouts.decode import SHAPES, write_model
from tests.bench.engine.runs import Run, own_ray, run_job
from tests.bench.engine.schedules import GROUP, add_trace_arguments, row, spec_of

CONTEXTS = (256, 1_024, 4_096)
MOVED = 8
ANSWER = 64  # longer than the prefill of the others, so that none ends before it moves


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_trace_arguments(parser)
    parser.add_argument("--repeats", type=int, default=5, help="of each move")


def measure(arguments: argparse.Namespace) -> Report:
    rows: list[Row] = []
    arguments.weight_slots = 1
    with own_ray():
        for repack in (True, False):
            run = run_job(spec_of("laminar", "tailed", arguments, repack=repack))
            rows.append({"what": f"repack {'on' if repack else 'off'}", **_of_run(run, arguments)})
    rows += [*move_rows(arguments.repeats), *page_rows(arguments.repeats)]
    remark = f"moves: {MOVED} sequences at once, model 2.9M, one thread, in one process"
    return Report(bench="repack", rows=rows, remarks=[remark])


def _of_run(run: Run, arguments: argparse.Namespace) -> Row:
    measured = row("laminar", "tailed", run, arguments)
    steps = [step.metrics for _, step in run.steps[arguments.warm_up :]]
    return {
        **{name: value for name, value in measured.items() if name not in ("schedule", "waits", "bound_per_s")},
        "kv_used": rounded(sum(metrics["rollout/kv_used"] for metrics in steps) / len(steps)),
        "idle": rounded(sum(metrics.get("rollout/time_idle", 0.0) for metrics in steps) / len(steps)),
        "samples_moved": steps[-1]["moves/samples"],
        "group": GROUP,
    }


def move_rows(repeats: int) -> list[Row]:
    torch.set_num_threads(1)
    [shape] = [shape for shape in SHAPES if shape.name == "2.9M"]
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        write_model(shape, Path(folder), positions=max(CONTEXTS) + ANSWER)
        for context in CONTEXTS:
            move_s = _Pair(Path(folder), context).move_s
            contestants = {
                "move with KV": partial(move_s, with_kv=True),
                "move by re-prefill": partial(move_s, with_kv=False),
            }
            in_turns(contestants, repeats=1)  # allocates memory first, as in a replica that has run for a while
            for what, seconds in in_turns(contestants, repeats=repeats).items():
                spread = Spread.of([each * 1e3 for each in seconds])
                rows.append({"what": what, "context_tokens": context, **spread.columns("milliseconds")})
    return rows


class _Pair:
    """Two engines; the sequences of one go over to the other."""

    def __init__(self, folder: Path, context: int) -> None:
        self._source, self._host = (TorchRolloutEngine(folder, max_batch=MOVED, device="cpu") for _ in range(2))
        self._context = context
        self._chance = torch.Generator().manual_seed(context)

    def move_s(self, *, with_kv: bool) -> float:
        """The seconds until each has decoded its next token on the other engine. Its new prompt is prefilled before."""
        source, host, context = self._source, self._host, self._context
        names = [str(at) for at in range(MOVED)]
        prompts = torch.randint(1, 500, (MOVED, context), generator=self._chance).tolist()
        sampling = SamplingParams(max_new_tokens=ANSWER, temperature=0.0, seed=0)
        prefilled = source.view().num_prefilled + MOVED * (context - 1)
        source.submit(
            [
                SequenceRequest(sequence_id=name, prompt_ids=tuple(prompt), sampling=sampling)
                for name, prompt in zip(names, prompts, strict=True)
            ]
        )
        while source.view().num_prefilled < prefilled:
            source.step()
        decoded = host.view().num_decoded + MOVED
        started = time.perf_counter()
        host.submit(source.export(names, leave=True, with_kv=with_kv))
        while host.view().num_decoded < decoded:
            host.step()
        took_s = time.perf_counter() - started
        host.abort(names)
        return took_s
