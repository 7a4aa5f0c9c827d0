"""SCALE: how much slower this machine runs a test now than a quiet machine like the reference would.

The runner measures it once at the start and passes it on by the environment. Timeouts and the limit for unmarked tests
are multiplied by it, so that no verdict of a test depends on how busy the machine is.
"""

import os
import time
from concurrent.futures import ProcessPoolExecutor
from typing import Final

from engine.environments.sandbox.host_speed import one_round, scale_of

VARIABLE: Final = "LAMINAR_TEST_SCALE"
MEASURED_FOR_S: Final = 0.3


def scale() -> float:
    """Of the run that this process belongs to; 1 outside of one."""
    return float(os.environ.get(VARIABLE, "1"))


def measure_scale(num_cores: int | None = None) -> float:
    """Between 1 and 10. Every core is kept busy at once, since the tests will use them all."""
    count = num_cores or os.cpu_count() or 1
    with ProcessPoolExecutor(max_workers=count) as pool:
        rates = list(pool.map(_rounds_per_s, [MEASURED_FOR_S] * count))
    return round(scale_of(min(rates)), 1)


def _rounds_per_s(seconds: float) -> float:
    started, rounds = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - started) < seconds or rounds == 0:
        one_round()
        rounds += 1
    return rounds / elapsed
