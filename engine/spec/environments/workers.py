"""Environment workers: how many a job needs for its open samples.

Each open sample has at most one call to its environment. A worker serves one call per thread; calls that wait for a
core or a process wait on the worker's host, so further workers on the same host would not help.
"""

from typing import Final

from engine.spec.job import JobSpec

CALLS_OF_A_WORKER: Final = 512
MOST_WORKERS: Final = 256
MEMORY_SHARE: Final = 1 / 4
"""The part of a host's memory that all sandboxed processes of a job may use there."""


def open_samples(spec: JobSpec) -> int:
    """The most samples that all replicas have open at once."""
    return spec.rollout.replicas * spec.rollout.max_batch


def workers_for(spec: JobSpec) -> int:
    return min(-(-open_samples(spec) // CALLS_OF_A_WORKER), MOST_WORKERS)


def line_on_workers(spec: JobSpec) -> str:
    """A line of the fit report."""
    workers = spec.environment.workers
    line = (
        f"Up to {open_samples(spec):,} open samples. {workers:,} environment worker{'s' if workers > 1 else ''}, for "
        f"{workers * CALLS_OF_A_WORKER:,} calls at once; graders and tools use at most half of the cores and a quarter "
        "of the memory of a host."
    )
    if spec.environment.workers < workers_for(spec):
        return f"{line} Further calls wait in a queue: set environment.workers to {workers_for(spec):,}."
    return line
