"""Ray's Jobs API as a dict: it knows what it was told, and everything else is missing."""

from dataclasses import dataclass, field

from backend.jobs.attempts.launcher import RayUnreachable, SubmissionStatus
from engine.spec.control import AttemptOrder


@dataclass(slots=True)
class FakeRay:
    known: dict[str, SubmissionStatus] = field(default_factory=dict)
    away: bool = False
    orders: list[AttemptOrder] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)

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

    def _answer(self) -> None:
        if self.away:
            raise RayUnreachable("no route to host")
