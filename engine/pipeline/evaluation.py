"""An evaluation: the held-out prompts, one sample each, answered by the weights of one version.

Invariants:
- only replicas that hold exactly this version answer, unless it is gone from every relay: then any may, and the
  report says so;
- a grader's failure is no reward of 0: such prompts are left out of the mean and counted.
"""

from engine.pipeline.groups import GroupBook
from engine.pipeline.records import GroupKey, Trajectory
from engine.pipeline.reports import EvaluationReported, FaultReported


class Evaluation:
    def __init__(self, *, version: int, num_prompts: int) -> None:
        self.version = version
        self.groups = GroupBook()
        self._answered: list[Trajectory] = []
        for ordinal in range(num_prompts):
            self.groups.open(GroupKey(ordinal=ordinal, evaluation=version), num_samples=1, exact_version=version)

    @property
    def is_finished(self) -> bool:
        return len(self.groups) == 0

    def take(self, trajectory: Trajectory) -> None:
        group = self.groups.take(trajectory)
        if group is not None:
            self._answered.extend(group.finished)

    def reports(self) -> list[EvaluationReported | FaultReported]:
        reports: list[EvaluationReported | FaultReported] = []
        graded = [trajectory for trajectory in self._answered if not trajectory.failure]
        num_failed = len(self._answered) - len(graded)
        num_newer = sum(trajectory.version != self.version for trajectory in graded)
        if num_failed:
            reason = next(trajectory.failure for trajectory in self._answered if trajectory.failure)
            reports.append(
                self._fault(f"{num_failed} held-out answers got no verdict: {reason}", "left out of the mean")
            )
        if num_newer:
            message = f"version {self.version} was lost"
            reports.append(self._fault(message, f"{num_newer} answers are by newer weights"))
        if graded:
            reports.append(
                EvaluationReported(
                    version=self.version,
                    num_prompts=len(graded),
                    reward_mean=sum(trajectory.reward for trajectory in graded) / len(graded),
                    length_mean=sum(trajectory.num_tokens for trajectory in graded) / len(graded),
                )
            )
        return reports

    def _fault(self, message: str, action: str) -> FaultReported:
        return FaultReported(component=f"evaluation/{self.version}", message=message, action=action)
