"""Ray's Jobs API as a dict: it knows the submitted jobs only. Called with any pool, it is that pool's Ray."""

from dataclasses import dataclass, field
from typing import Self

from backend.jobs.attempts.launcher import SubmissionStatus
from backend.pools.clusters.dashboard import RayUnreachable
from backend.pools.clusters.probes import RayHost
from backend.pools.models import ResourcePool
from engine.spec.control import AttemptOrder


@dataclass(slots=True)
class FakeRay:
    known: dict[str, SubmissionStatus] = field(default_factory=dict)
    away: bool = False
    orders: list[AttemptOrder] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)
    nodes: list[RayHost] = field(default_factory=list)

    def __call__(self, pool: ResourcePool) -> Self:
        return self

    def launch(self, order: AttemptOrder, submission_id: str) -> None:
        self._answer()
        self.orders.append(order)
        self.known.setdefault(submission_id, SubmissionStatus.RUNNING)

    def status(self, submission_id: str) -> SubmissionStatus:
        self._answer()
        return self.known.get(submission_id, SubmissionStatus.MISSING)

    def stop(self, submission_id: str) -> None:
        self._answer()
        self.stopped.append(submission_id)

    def live_submissions(self) -> list[str]:
        self._answer()
        return [submission for submission, status in self.known.items() if status.is_live]

    def log_tail(self, submission_id: str, max_chars: int) -> str:
        self._answer()
        return "last \0words, lam_run_secret and Bearer abc"

    def hosts(self) -> list[RayHost]:
        self._answer()
        return self.nodes

    def _answer(self) -> None:
        if self.away:
            raise RayUnreachable("no route to host")
