"""Ray's word about the jobs of a round, where it is needed.

Invariants:
- each Ray is asked by itself and beside the others: one that hangs costs the jobs of the others no word;
- the first question that a Ray does not answer is the last one of the round, and nothing is concluded from that;
- asking ends in time for what follows from the answers.
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
from backend.reconcile.verdicts import must_ask
from backend.reconcile.views import Held

log = logging.getLogger(__name__)

MOST_AT_ONCE: Final = 16  # Rays, a thread each, which waits for the network

Words = Mapping[str, SubmissionStatus]
"""By submission; of what is not in it nothing is known."""


def ask_rays(jobs: Iterable[Held], rays: Rays, *, stop_at: float) -> Words:
    """`stop_at`: on this process' monotonic clock."""
    by_ray: dict[RayAddress, list[Held]] = defaultdict(list)
    for held in jobs:
        if held.attempt is not None and must_ask(held.view):
            by_ray[address_of(held.job.pool)].append(held)
    words: dict[str, SubmissionStatus] = {}
    reached = [(launcher, held) for held in by_ray.values() if (launcher := _launcher(held[0], rays))]
    if len(reached) == 1:
        _ask(*reached[0], words, stop_at)
    elif reached:
        threads = ThreadPoolExecutor(max_workers=min(len(reached), MOST_AT_ONCE), thread_name_prefix="ray")
        asked = [threads.submit(_ask, launcher, held, words, stop_at) for launcher, held in reached]
        wait(asked, timeout=max(0.0, stop_at - time.monotonic()))
        threads.shutdown(wait=False, cancel_futures=True)
    return dict(words)


def _launcher(held: Held, rays: Rays) -> Launcher | None:
    try:
        return rays(held.job.pool)
    except LauncherError as error:
        log.warning("ray=%s cannot be asked: %s", address_of(held.job.pool), error)
        return None


def _ask(launcher: Launcher, jobs: Sequence[Held], words: dict[str, SubmissionStatus], stop_at: float) -> None:
    for held in jobs:
        assert held.attempt is not None, "it was chosen for its attempt"
        if time.monotonic() >= stop_at:
            log.warning("ray=%s was not asked about every job; the next round is", address_of(held.job.pool))
            return
        try:
            words[held.attempt.submission_id] = launcher.status(held.attempt.submission_id)
        except LauncherError as error:
            address = address_of(held.job.pool)
            log.warning("ray=%s does not answer, nothing is concluded from that: %s", address, error)
            return
