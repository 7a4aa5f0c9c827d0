"""A GPU's speed at a trainer's work and a rollout's, figure by figure, each with its bound; at most ten minutes plus
the measurement then in progress.

The first figures are the device's own: large products, a copy in its memory, a copy to the host. Every other one is a
share of the figure that bounds it, and a pass also has the memory that `python -m engine fit` counts for it. The last
ones compare its log-probs with a CPU's in float32. Figures that could not be measured are listed by name. Without a GPU
nothing is measured; `--device cpu` runs the same code at a small scale, only as a test of the code.
"""

import argparse
import gc
import time
from collections.abc import Mapping
from typing import Final

import torch

from engine.fit.durations.step import DEVICES, Device
from engine.scorecard.tables import Row, Spread, rounded
from tests.bench.engine.gpu_probes import CEILINGS, OF_A_CPU, OF_A_GPU, PROBES, Probe, Scale, Work, agreement
from tests.bench.engine.report import Report
from tests.bench.engine.rollouts.on_device import OF_A_CPU as ROLLOUTS_ON_A_CPU
from tests.bench.engine.rollouts.on_device import OF_A_GPU as ROLLOUTS_ON_A_GPU
from tests.bench.engine.rollouts.on_device import Bench, vllm_rows
from tests.bench.engine.rollouts.torch_on_device import torch_rows

UNITS: Final = {"flop": ("Tflop/s", 1e12), "byte": ("GB/s", 1e9)}
PARTS: Final = ("trainer", "torch", "vllm")
ELSEWHERE: Final = "not measured: work of several GPUs"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=540.0, help="start no further figure after this time")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="default: all; bounds always")
    parser.add_argument("--vllm-python", default=None, help="the interpreter of vLLM's environment; default: found")


def measure(arguments: argparse.Namespace) -> Report:
    if arguments.device == "cuda" and not torch.cuda.is_available():
        return Report(bench="gpu", rows=[], remarks=["No GPU here: nothing was tried.", ELSEWHERE])
    device = torch.device(arguments.device)
    scale = OF_A_GPU if device.type == "cuda" else OF_A_CPU
    sheet = _data_sheet(device)
    remarks = [_words_of(scale), ELSEWHERE]
    rows: list[Row] = []
    ceilings: dict[str, float] = {}
    started = time.monotonic()
    for name, probe in PROBES.items():
        if "trainer" not in arguments.parts and name not in CEILINGS:
            continue
        if time.monotonic() - started > arguments.seconds:
            remarks.append(f"not tried: {name}, for want of time")
            continue
        try:
            rows.append(_row(name, probe, scale, device, ceilings, sheet, repeats=arguments.repeats))
        except (RuntimeError, MemoryError, ImportError, NotImplementedError) as error:
            remarks.append(f"could not be tried: {name}: {type(error).__name__}: {str(error).splitlines()[0]}")
        _forget(device)
    rollouts = Bench(
        device=device.type,
        scale=ROLLOUTS_ON_A_GPU if device.type == "cuda" else ROLLOUTS_ON_A_CPU,
        ceilings=ceilings if device.type == "cuda" else {},
        repeats=arguments.repeats,
        is_over=lambda: time.monotonic() - started > arguments.seconds,
        remark=remarks.append,
    )
    if "trainer" in arguments.parts:
        rows += agreement(device)
    if "torch" in arguments.parts:
        rows += torch_rows(rollouts)
    if "vllm" in arguments.parts:
        rows += vllm_rows(rollouts, python=arguments.vllm_python)
    return Report(bench="gpu", rows=rows, remarks=remarks)


def _row(
    name: str,
    probe: Probe,
    scale: Scale,
    device: torch.device,
    ceilings: dict[str, float],
    sheet: Device | None,
    *,
    repeats: int,
) -> Row:
    work = probe(scale, device)
    spread = Spread.of(_rates(work, device, repeats=repeats))
    if name in CEILINGS:
        ceilings[CEILINGS[name]] = spread.median
    unit, factor = UNITS[work.unit]
    bound = _bound(work, ceilings, sheet) if device.type == "cuda" else None
    row: dict[str, str | int | float | None] = {
        "figure": name,
        "unit": unit,
        "median": rounded(spread.median / factor),
        "lowest": rounded(spread.lowest / factor),
        "highest": rounded(spread.highest / factor),
        "bound": None if bound is None else rounded(bound / factor),
        "bound_by": work.bound or None,
        "share": None if bound is None else round(spread.median / bound, 3),
    }
    if device.type == "cuda":
        row["peak_gb"] = rounded(torch.cuda.max_memory_allocated(device) / 1e9)
        row["counted_gb"] = rounded(work.counted_bytes / 1e9) if work.counted_bytes else None
    return row


def _rates(work: Work, device: torch.device, *, repeats: int) -> list[float]:
    rates: list[float] = []
    for number in range(repeats + 2):
        _wait(device)
        started = time.perf_counter()
        work.run()
        _wait(device)
        if number >= 2:  # the first ones choose kernels and find memory
            rates.append(work.amount / (time.perf_counter() - started))
    return rates


def _bound(work: Work, ceilings: Mapping[str, float], sheet: Device | None) -> float | None:
    if work.bound != "data sheet":
        return ceilings.get(work.bound)
    if sheet is None:
        return None
    return sheet.flops_per_s if work.unit == "flop" else sheet.bytes_per_s


def _data_sheet(device: torch.device) -> Device | None:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    return next((each for each in DEVICES if each.name in name), None)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _forget(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def _words_of(scale: Scale) -> str:
    shape, small = scale.shape, scale.small_shape
    return (
        f"small model: width {small.width:,}, {small.num_layers} layers; other passes: width {shape.width:,}, "
        f"{shape.num_layers} layers, {shape.num_heads} heads of {shape.head_dim}, vocabulary {shape.vocab_size:,}, "
        f"{scale.num_sequences} sequences of {scale.length:,} tokens"
    )
