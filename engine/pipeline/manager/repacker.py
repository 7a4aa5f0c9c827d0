"""The repacker: decides when to search for tails, and requests the moves from data.

Invariants:
- a plan uses measurements of live incarnations; data checks it against the current state;
- a replica in a plan joins no other before a new measurement.
"""

from engine.pipeline.effects import Effect, Send
from engine.pipeline.messages.addresses import DATA
from engine.pipeline.messages.to_data import RepackPlanned
from engine.pipeline.messages.to_manager import ReplicaReported
from engine.pipeline.plan import Plan
from engine.pipeline.records import Move, ResidentLoad
from engine.policy.lineage import NO_WEIGHTS, WeightsId
from engine.policy.repack import REPACK_EVERY_S, ReplicaView, plan_repack


class Repacker:
    def __init__(self, plan: Plan, *, every_s: float = REPACK_EVERY_S) -> None:
        self._plan, self._every_s = plan, every_s
        self._last: dict[int, ReplicaReported] = {}
        self._kv_before: dict[int, float] = {}
        """KV use at the previous plan; a replica unknown then is at no plateau yet."""
        self._newest = NO_WEIGHTS
        self._planned_at = 0.0

    @classmethod
    def for_plan(cls, plan: Plan, *, every_s: float = REPACK_EVERY_S) -> "Repacker | None":
        return cls(plan, every_s=every_s) if plan.schedule.repack else None

    def receive(self, report: ReplicaReported) -> None:
        self._last[report.replica] = report
        self._newest = max(self._newest, report.weights)

    def forget(self, replica: int) -> None:
        self._last.pop(replica, None)

    def on_updated(self, weights: WeightsId, now: float) -> list[Effect]:
        """After the trainer has made these weights: running work is on an older version now."""
        if weights <= self._newest:
            return []
        self._newest = weights
        return self._request_moves(now)

    def on_tick(self, now: float) -> list[Effect]:
        return self._request_moves(now) if now - self._planned_at >= self._every_s else []

    def _request_moves(self, now: float) -> list[Effect]:
        self._planned_at = now
        views = self._views()
        merges = plan_repack(
            views,
            newest=self._newest,
            kv_ceiling=self._plan.kv_ceiling,
            max_batch=self._plan.repack_batch or self._plan.max_batch,
            by=self._plan.schedule.repack_by,
        )
        self._kv_before = {replica: report.kv_used for replica, report in self._last.items()}
        if not merges:
            return []
        moves = tuple(
            Move(
                source=merge.source,
                source_incarnation=self._last[merge.source].incarnation,
                host=merge.host,
                host_incarnation=self._last[merge.host].incarnation,
                weights=merge.weights,
            )
            for merge in merges
        )
        for merge in merges:
            self.forget(merge.source)
            self.forget(merge.host)
        return [Send(to=DATA, message=RepackPlanned(moves=moves))]

    def _views(self) -> list[ReplicaView]:
        return [
            ReplicaView(
                replica=replica,
                weights=load.weights,
                num_running=load.num_running,
                kv_used=load.kv_used,
                num_other=report.num_running - load.num_running,
                kv_other=report.kv_used - load.kv_used,
                kv_falls=report.kv_used < min(self._plan.kv_ceiling, self._kv_before.get(replica, 0.0)),
                has_free_slot=report.has_free_slot,
            )
            for replica, report in self._last.items()
            for load in _list_loads(report)
        ]


def _list_loads(report: ReplicaReported) -> tuple[ResidentLoad, ...]:
    """The load of each version that the replica holds."""
    num_other = sum(load.num_running for load in report.older)
    kv_other = sum(load.kv_used for load in report.older)
    own = ResidentLoad(
        weights=report.weights,
        num_running=report.num_running - num_other,
        kv_used=max(0.0, report.kv_used - kv_other),
    )
    return (own, *report.older)
