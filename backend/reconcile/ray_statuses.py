"""Ray's status of the jobs of a round, where an action needs it.

Invariants:
- each Ray is queried on its own and in parallel with the others: one that hangs does not hide the jobs of the others;
- the first query that a Ray does not answer is its last in the round, and nothing is concluded from it;
- queries end early enough to act on the answers.
"""

import logging
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Final

from backend.jobs.attempts.launcher import Launcher, Rays, SubmissionStatus
from backend.pools.clusters.addresses import RayAddress, address_of
from backend.pools.clusters.dashboard import LauncherError
from backend.reconcile.judging import needs_ray_status
from backend.reconcile.views import Held

log = logging.getLogger(__name__)

MOST_AT_ONCE: Final = 16  # Rays, with one thread each that waits for the network

Statuses = Mapping[str, SubmissionStatus]
"""By submission id; absent if unknown."""


def query_rays(jobs: Iterable[Held], rays: Rays, *, stop_at: float) -> Statuses:
    """`stop_at`: on this process' monotonic clock."""
    by_ray: dict[RayAddress, list[Held]] = defaultdict(list)
    for held in jobs:
        if held.attempt is not None and needs_ray_status(held.view):
            by_ray[address_of(held.job.pool)].append(held)
    statuses: dict[str, SubmissionStatus] = {}
    reached = [(launcher, held) for held in by_ray.values() if (launcher := _launcher(held[0], rays))]
    if len(reached) == 1:
        _ask(*reached[0], statuses, stop_at)
    elif reached:
        threads = ThreadPoolExecutor(max_workers=min(len(reached), MOST_AT_ONCE), thread_name_prefix="ray")
        queries = [threads.submit(_ask, launcher, held, statuses, stop_at) for launcher, held in reached]
        wait(queries, timeout=max(0.0, stop_at - time.monotonic()))
        threads.shutdown(wait=False, cancel_futures=True)
    return dict(statuses)


def _launcher(held: Held, rays: Rays) -> Launcher | None:
    try:
        return rays(held.job.pool)
    except LauncherError as error:
        log.warning("ray=%s cannot be queried: %s", address_of(held.job.pool), error)
        return None


def _ask(launcher: Launcher, jobs: Sequence[Held], statuses: dict[str, SubmissionStatus], stop_at: float) -> None:
    for held in jobs:
        assert held.attempt is not None, "chosen for its attempt"
        if time.monotonic() >= stop_at:
            log.warning("ray=%s: not all jobs queried in time; the next round continues", address_of(held.job.pool))
            return
        try:
            statuses[held.attempt.submission_id] = launcher.status(held.attempt.submission_id)
        except LauncherError as error:
            address = address_of(held.job.pool)
            log.warning("ray=%s does not respond, its jobs are left alone: %s", address, error)
            return
