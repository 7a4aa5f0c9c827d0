"""vLLM through us against vLLM alone, and our own time a step.

Alone is vLLM's own `LLM.generate`, in one process as ours is, of the same weights, prompts and lengths, one thread;
both sample alike: greedy, or at temperature 1 without an end token, from generators there and from seeds and positions
here. vLLM alone runs with the log-prob of each token, as rollouts need it, and once more without. The two take turns,
and wait without spinning: on a busy machine CPU time and the ratio are meaningful.

The model of the second table answers at once, so that only the overhead around a model remains: the time of a step
through us beyond one alone, and, measured directly, our share around vLLM's step and that of sampling.
"""

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

from engine.scorecard.tables import Row, Spread, rounded
from tests.bench.engine.report import Report, in_turns
from tests.bench.engine.rollouts.decode import PROMPT_TOKENS, SHAPES, write_model
from tests.bench.engine.rollouts.in_vllm import Ask, process_of, vllm_python, without_end

OURS: Final = "vLLM through us"
ALONE: Final = "vLLM alone"
SILENT: Final = "vLLM alone, no log-probs"
DRAWS: Final = {"greedy": 0.0, "temperature 1": 1.0}
AT_ONCE: Final = "answers at once"
PROMPT_AT_ONCE: Final = 4
"""Short enough that the prompts of 256 rows are prefilled in one step."""
Sample = dict[str, float]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--batches", type=int, nargs="*", default=[1, 16, 64])
    parser.add_argument("--rows", type=int, nargs="*", default=[64, 256], help="of the model that answers at once")
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--model", default="2.9M", choices=[shape.name for shape in SHAPES])
    parser.add_argument("--vllm-python", default=None, help="the interpreter of vLLM's environment; default: found")


def measure(arguments: argparse.Namespace) -> Report:
    python = vllm_python(arguments.vllm_python)
    if python is None:
        return Report(bench="rollouts", rows=[], remarks=["vLLM's environment is not set up here: `make vllm`"])
    rows: list[Row] = []
    for model, batches in ((arguments.model, arguments.batches), (AT_ONCE, arguments.rows)):
        if batches:
            rows += _rows_of(model, batches, python, arguments)
    remarks = [
        f"{PROMPT_TOKENS} prompt tokens ({PROMPT_AT_ONCE} where the model {AT_ONCE}), {arguments.new_tokens} new"
    ]
    return Report(bench="rollouts", rows=rows, remarks=remarks)


def _rows_of(model: str, batches: list[int], python: str, arguments: argparse.Namespace) -> Iterator[Row]:
    at_once = model == AT_ONCE
    prompt_tokens = PROMPT_AT_ONCE if at_once else PROMPT_TOKENS
    with tempfile.TemporaryDirectory() as name, ExitStack() as processes:
        folder = Path(name)
        _write(folder, model, positions=prompt_tokens + arguments.new_tokens)
        ours, alone = (
            processes.enter_context(
                process_of(python, "tests.bench.engine.rollouts.contestants", [who, str(folder), str(max(batches))])
            )
            for who in ("ours", "alone")
        )
        for batch in batches:
            for draw, temperature in DRAWS.items():
                asked = {
                    "batch": batch,
                    "temperature": temperature,
                    "new_tokens": arguments.new_tokens,
                    "prompt_tokens": prompt_tokens,
                }
                turns = _in_turns(asked, ours, alone, repeats=arguments.repeats)
                yield from _rows_of_turns(turns, model, batch, draw, arguments.new_tokens, at_once=at_once)


def _write(folder: Path, model: str, *, positions: int) -> None:
    shape = next((each for each in SHAPES if each.name == model), SHAPES[0])
    write_model(shape, folder, positions=positions)
    without_end(folder)  # vLLM alone ignores it by a setting
    if model == AT_ONCE:
        settings: dict[str, Any] = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**settings, "architectures": ["AnswersAtOnceForCausalLM"]}))


def _in_turns(request: dict[str, Any], ours: Ask, alone: Ask, *, repeats: int) -> dict[str, list[Sample]]:
    contestants: dict[str, Callable[[], Sample]] = {
        OURS: partial(ours, request),
        ALONE: partial(alone, request | {"logprobs": True}),
        SILENT: partial(alone, request | {"logprobs": False}),
    }
    for run in contestants.values():
        run()
    return in_turns(contestants, repeats=repeats)


def _rows_of_turns(
    turns: dict[str, list[Sample]], model: str, batch: int, draw: str, num_steps: int, *, at_once: bool
) -> Iterator[Row]:
    median = {
        name: {key: Spread.of([sample[key] for sample in samples]).median for key in samples[0]}
        for name, samples in turns.items()
    }
    for name, took in median.items():
        rate = Spread.of([sample["tokens"] / sample["wall_s"] for sample in turns[name]])
        row: dict[str, str | int | float | None] = {
            "model": model,
            "batch": batch,
            "draw": draw,
            "engine": name,
            **rate.columns("tokens_per_s"),
            "cpu_ms_a_step": rounded(1e3 * took["cpu_s"] / num_steps),
            "of_alone": round(rate.median * median[ALONE]["wall_s"] / median[ALONE]["tokens"], 3),
            "of_alone_cpu": round(median[ALONE]["cpu_s"] / took["cpu_s"], 3),
        }
        if at_once and name == OURS:
            row["more_cpu_ms"] = rounded(1e3 * (took["cpu_s"] - median[ALONE]["cpu_s"]) / num_steps)
            row["around_ms"] = rounded(1e3 * (took["step_s"] - took["vllm_s"]) / num_steps)
            row["draw_ms"] = rounded(1e3 * took["draw_s"] / num_steps)
        yield row
