"""Products of a few rows and a matrix of weights on a CPU, in the layout and dtype that measured fastest.

    1,024 × 1,024, 4 rows, one thread, ms       bfloat16 rows   columns   float32 rows   columns
    AVX-512 with bfloat16 (an EPYC)                      0.18      0.23           0.38      0.39
    the same, restricted to AVX2                         0.37      8.2            0.46      0.48
    the same, restricted to SSE 4                        1.0       7.5            0.42      0.43

Two choices differ by rounding only: by the order of a sum, or by products in float32 of weights that are bfloat16
numbers either way. Installed and saved weights are the same in both.

Invariants:
- one choice per process, dtype and shape: engines of one process compute alike, whatever later measurements show;
- the stored form is used unless another one is faster by more than the noise of a measurement. In particular, small
  models are never converted to float32.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from engine.models.decoder import Decoder, DecoderConfig

LOG: Final = logging.getLogger(__name__)

ROWS: Final = 4  # between a single answer and a full batch; the best choice is the same for all of them
LARGEST_SIDE: Final = 1_024  # of the measured matrix: beyond it time is proportional to the area
SMALL_NUMEL: Final = 2**18  # below it calls cost as much as products: another dtype would save microseconds
LEAST_GAIN: Final = 1.1  # the best samples of equally fast ways differ by less

_NUM_SAMPLES: Final = 4
_STREAMED_BYTES: Final = 2**23  # more than a core's own cache, as with the weights of a whole model


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuProducts:
    dtype: torch.dtype
    by_columns: bool

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')} by {'columns' if self.by_columns else 'rows'}"


@dataclass(frozen=True, slots=True)
class MatrixShape:
    height: int
    width: int

    @classmethod
    def largest_of(cls, config: DecoderConfig) -> "MatrixShape":
        return cls(min(2 * config.mlp_width, LARGEST_SIDE), min(config.width, LARGEST_SIDE))

    @property
    def numel(self) -> int:
        return self.height * self.width


Measure = Callable[[Sequence[CpuProducts], MatrixShape], Mapping[CpuProducts, float]]
"""Seconds of one product for each way."""

_chosen: dict[tuple[torch.dtype, MatrixShape], CpuProducts] = {}
_choosing = Lock()


def products_for(config: DecoderConfig) -> CpuProducts:
    """Measures at the first call, for some tenths of a second at most."""
    shape = MatrixShape.largest_of(config)
    with _choosing:
        if (config.dtype, shape) not in _chosen:
            _chosen[config.dtype, shape] = choose(config.dtype, shape, measure)
        return _chosen[config.dtype, shape]


def choose(stored: torch.dtype, shape: MatrixShape, measure: Measure) -> CpuProducts:
    times = measure(_ways(stored, shape), shape)
    chosen, *others = [_layout(times, dtype) for dtype in dict.fromkeys(way.dtype for way in times)]
    for in_float32 in others:
        chosen = in_float32 if times[in_float32] * LEAST_GAIN <= times[chosen] else chosen
    LOG.info(
        "products on the CPU: chosen=%r shape=%dx%d rows=%d threads=%d measured_ms=%r",
        str(chosen),
        shape.height,
        shape.width,
        ROWS,
        torch.get_num_threads(),
        ", ".join(f"{way} {1e3 * seconds:.3f}" for way, seconds in times.items()),
    )
    return chosen


def lay_out(model: Decoder, products: CpuProducts) -> None:
    """Keeps shapes, values and views. Skips a tied head, as the lookup of an embedding reads rows, and experts: their
    matrices are stacked, so a column of the stack is no column of one."""
    if not products.by_columns:
        return
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2 and name != "embedding_VD" and ".mixture." not in name:
            parameter.data = by_columns(parameter.data)


def by_columns(weight_HW: Tensor) -> Tensor:
    return weight_HW.t().contiguous().t()


@torch.inference_mode()
def measure(ways: Sequence[CpuProducts], shape: MatrixShape) -> dict[CpuProducts, float]:
    """The best of several passes through many matrices, in turns: other load on the machine can only slow a pass."""
    weights = {way: _matrices(way, shape) for way in ways}
    inputs = {way: torch.full((ROWS, shape.width), 0.5, dtype=way.dtype) for way in ways}
    for way in ways:
        _multiply(inputs[way], weights[way][:1])
    rounds = [{way: _multiply(inputs[way], weights[way]) for way in ways} for _ in range(_NUM_SAMPLES)]
    return {way: min(times[way] for times in rounds) / len(weights[way]) for way in ways}


def _matrices(way: CpuProducts, shape: MatrixShape) -> list[Tensor]:
    count = -(-_STREAMED_BYTES // (shape.numel * way.dtype.itemsize))
    matrices = [torch.full((shape.height, shape.width), 0.5, dtype=way.dtype) for _ in range(count)]
    return [by_columns(weight_HW) for weight_HW in matrices] if way.by_columns else matrices


def _multiply(x_RW: Tensor, weights: Sequence[Tensor]) -> float:
    """This thread's own seconds, so that other load on a busy machine does not count."""
    started = time.thread_time()
    for weight_HW in weights:
        functional.linear(x_RW, weight_HW)
    return time.thread_time() - started


def _ways(stored: torch.dtype, shape: MatrixShape) -> Sequence[CpuProducts]:
    dtypes = [stored] if shape.numel < SMALL_NUMEL else list(dict.fromkeys((stored, torch.float32)))
    return [CpuProducts(dtype=dtype, by_columns=by_columns) for dtype in dtypes for by_columns in (False, True)]


def _layout(times: Mapping[CpuProducts, float], dtype: torch.dtype) -> CpuProducts:
    rows, columns = (CpuProducts(dtype=dtype, by_columns=by_columns) for by_columns in (False, True))
    return columns if times[columns] * LEAST_GAIN <= times[rows] else rows
