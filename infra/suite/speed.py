"""SCALE: how much slower this machine runs a test now than a quiet machine like the reference would.

The runner measures it once at the start and passes it on by the environment. Timeouts and the limit for unmarked tests
are multiplied by it, so that no verdict of a test depends on how busy the machine is.
"""

import os
import time
from concurrent.futures import ProcessPoolExecutor
from typing import Final

VARIABLE: Final = "LAMINAR_TEST_SCALE"
REFERENCE_ROUNDS_PER_S: Final = 10_000.0
"""Rounds of `_spin` a second and core where the budgets were measured: two quiet cores of an AMD EPYC."""
MEASURED_FOR_S: Final = 0.3
HIGHEST: Final = 10.0


def scale() -> float:
    """Of the run that this process belongs to; 1 outside of one."""
    return float(os.environ.get(VARIABLE, "1"))


def measure_scale(num_cores: int | None = None) -> float:
    """Between 1 and 10. Every core is kept busy at once, since the tests will use them all."""
    count = num_cores or os.cpu_count() or 1
    with ProcessPoolExecutor(max_workers=count) as pool:
        rates = list(pool.map(_rounds_per_s, [MEASURED_FOR_S] * count))
    return scale_of(min(rates))


def scale_of(rounds_per_s: float) -> float:
    return round(min(max(REFERENCE_ROUNDS_PER_S / rounds_per_s, 1.0), HIGHEST), 1)


def _rounds_per_s(seconds: float) -> float:
    started, rounds = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - started) < seconds or rounds == 0:
        _spin()
        rounds += 1
    return rounds / elapsed


def _spin() -> int:
    total = 0
    for number in range(1_000):
        total += number * number % 7
    return total
