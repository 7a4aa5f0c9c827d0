"""The weights of one replica: those for fresh work, others in use, and those to pull next.

Invariants:
- where a trajectory keeps its version, weights are installed only into a slot that nothing runs on; what is fresh
  starts on the newest that is there, and what goes on, goes on on its own;
- with an age cap they may be laid under what runs on the oldest ones, all of which goes on on them: nothing of an
  evaluation's, and nothing that is on its way here;
- the weights for fresh work and those in use are never more than there are slots;
- while the last free slot waits for newer weights no fresh work takes it, unless it is told to hold those that it has;
- a replica that leaves pulls and installs nothing.
"""

from typing import Final

from engine.pipeline.effects import Effect, InstallWeights, Send
from engine.pipeline.messages.addresses import relay_address
from engine.pipeline.messages.to_relay import WeightsWanted
from engine.pipeline.messages.to_rollout import InstallRefused, WeightsServed
from engine.pipeline.plan import Plan
from engine.pipeline.records import GroupTask
from engine.pipeline.rollout.workload import Workload
from engine.policy.lineage import NO_WEIGHTS, WeightsId
from engine.policy.schedule import Refresh, ReplicaWeightsView

# An answer that is not here by then was lost, or its question.
ASK_AGAIN_AFTER_S: Final = 2.0
# A replica that hears nothing of new versions asks: the announcement may have been lost.
RECHECK_AFTER_S: Final = 5.0


class ReplicaWeights:
    def __init__(self, plan: Plan, work: Workload, *, replica: int, incarnation: int, relay: int) -> None:
        self._schedule, self._slots = plan.schedule, plan.weight_slots
        self._work = work
        self._replica, self._incarnation = replica, incarnation
        self._relay = relay_address(relay)
        self.fresh = NO_WEIGHTS
        """Those that fresh work starts on. Others may be in use beside them."""
        self.told_to_hold: WeightsId | None = None
        """Those that it should hold until told otherwise; None: the newest."""
        self.missing: WeightsId | None = None
        """It was told to hold these, and no relay has them."""
        self.is_installing = False
        self._laid_over: WeightsId | None = None
        """In use, and being overwritten."""
        self._newest = NO_WEIGHTS
        self._pulling_since: float | None = None
        self._asked_relay_at = float("-inf")
        self._is_leaving = False

    # ── what is there ─────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def keeps_version(self) -> bool:
        return self._schedule.keeps_version

    @property
    def has_free_slot(self) -> bool:
        return len(self._work.in_use) < self._slots

    @property
    def residents(self) -> frozenset[WeightsId]:
        """The weights that work may be for. During an installation, those in use: the rest may be overwritten."""
        if not self.is_installing:
            return self._work.in_use | {self.fresh} if self.keeps_version else frozenset({self.fresh})
        return self._work.in_use - {self._laid_over} if self.keeps_version else frozenset()

    @property
    def admits_fresh_work(self) -> bool:
        if not self.keeps_version:
            return True
        refresh = "keep" if self.told_to_hold is not None else self._refresh()
        would_fill_it = self.fresh not in self._work.in_use
        return not (refresh == "drain" or (refresh == "install" and would_fill_it))

    def of(self, task: GroupTask) -> WeightsId | None:
        """Those that this task runs on; None: not here. What comes late of a group goes to the rest of it."""
        if not self.keeps_version and task.exact is None:
            return self.fresh
        weights = task.exact or self._work.weights_of(task.key) or self.fresh
        return weights if weights in self.residents else None

    def can_continue(self, weights: WeightsId) -> bool:
        """True if work that another replica began on these can go on here."""
        return weights in self.residents or not (self.keeps_version or self.is_installing)

    # ── what should be there ──────────────────────────────────────────────────────────────────────────────────────

    def on_told_to_hold(self, to_hold: WeightsId | None) -> None:
        if to_hold != self.told_to_hold:
            self.told_to_hold, self._pulling_since = to_hold, None

    def on_announced(self, weights: WeightsId) -> None:
        if weights > self._newest:
            self._newest, self._pulling_since = weights, None

    def on_missing(self, weights: WeightsId) -> bool:
        """True if that is news."""
        if weights != self.told_to_hold:
            return False
        self.missing = weights
        return True

    def on_begun(self) -> None:
        """Work took the slot first: the weights are asked for again once it is done."""
        if not self.has_free_slot:
            self._pulling_since = None

    def leave(self) -> None:
        self._is_leaving = True

    def turn(self) -> bool:
        """Fresh work starts on weights that are here already, where those are the wanted ones. Whether it did turn."""
        wanted = self._newest if self.told_to_hold is None else self.told_to_hold
        is_step = wanted > self.fresh if self.told_to_hold is None else wanted != self.fresh
        if not (is_step and wanted in self._work.in_use) or self.is_installing:
            return False
        self.fresh = wanted
        return True

    # ── pulling ───────────────────────────────────────────────────────────────────────────────────────────────────

    def pull(self, now: float) -> list[Effect]:
        if self.is_installing or self._is_leaving:
            return []
        wanted = self._wanted()
        if wanted is None:
            self._pulling_since = None
            if now - self._asked_relay_at < RECHECK_AFTER_S:
                return []
        elif self._pulling_since is not None and now - self._pulling_since < ASK_AGAIN_AFTER_S:
            return []
        else:
            self._pulling_since = now
        self._asked_relay_at = now
        message = WeightsWanted(
            replica=self._replica,
            incarnation=self._incarnation,
            held=self.fresh,
            exact=self.told_to_hold if wanted is not None else None,
        )
        return [Send(to=self._relay, message=message)]

    def _wanted(self) -> WeightsId | None:
        """The weights to install next; None to keep what is there."""
        if self.told_to_hold is not None:
            differs = self.told_to_hold not in (self.fresh, self.missing)
            return self.told_to_hold if differs and self.has_free_slot else None
        return self._newest if self._refresh() == "install" else None

    def _refresh(self) -> Refresh:
        return self._schedule.refresh(self._view(self._newest))

    def _view(self, newest: WeightsId) -> ReplicaWeightsView:
        return ReplicaWeightsView(
            weights=self.fresh, newest=newest, has_free_slot=self.has_free_slot, oldest=self._work.oldest
        )

    def _over(self, served: WeightsId) -> WeightsId | None:
        """Weights in use, under whose work these are laid."""
        is_there = served in self._work.in_use
        if self.told_to_hold is not None or is_there or not self._schedule.lays_over(self._view(served)):
            return None
        return self._work.oldest

    def on_served(self, message: WeightsServed) -> list[Effect]:
        served = message.manifest.weights
        self._newest = max(self._newest, served)
        is_wanted = self.told_to_hold in (None, served) and served != self.fresh
        is_newer = self.told_to_hold is not None or served > self.fresh
        in_use = self._work.in_use
        has_place = self.has_free_slot and served not in in_use
        over = self._over(served)
        may_install = has_place or over is not None or (self.told_to_hold is None and not self.keeps_version)
        if self.is_installing or self._is_leaving or not (is_wanted and is_newer and may_install):
            return []
        self.is_installing, self._laid_over = True, over
        return [
            InstallWeights(
                manifest=message.manifest,
                payload=message.payload,
                in_flight=self._schedule.in_flight if over is None else "keep",
                keeps=tuple(sorted(in_use - {over})) if self.keeps_version else (),
                over=over,
            )
        ]

    def on_installed(self, weights: WeightsId) -> None:
        self.fresh, self.is_installing, self._pulling_since = weights, False, None
        self.missing = None
        if self._laid_over is not None or not self.keeps_version:
            self._work.carry_on(weights, of=self._laid_over)
        self._laid_over = None

    def on_refused(self, message: InstallRefused) -> None:
        self._laid_over = None
        self.is_installing = False  # asked for again after ASK_AGAIN_AFTER_S, as if it had never come
        if message.is_gone:
            self._pulling_since = None
