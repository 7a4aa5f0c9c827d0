"""The weights of one replica: for fresh work, in use by running work, and to pull next.

Invariants:
- where a trajectory keeps its version, weights are installed only into a slot without running work; fresh work starts
  on the newest installed weights, running work stays on its own;
- with an age cap new weights may overwrite the oldest ones in use, whose work continues on them; never those of an
  evaluation, nor of work on its way here;
- the weights for fresh work and those in use never exceed the slots;
- while the last free slot waits for newer weights no fresh work takes it, unless data ordered to hold the current ones;
- a leaving replica pulls and installs nothing.
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

# The request or its answer was lost if none arrives in this time.
ASK_AGAIN_AFTER_S: Final = 2.0
# Without announcements a replica polls for new versions: an announcement may have been lost.
RECHECK_AFTER_S: Final = 5.0


class ReplicaWeights:
    def __init__(self, plan: Plan, work: Workload, *, replica: int, incarnation: int, relay: int) -> None:
        self._schedule, self._slots = plan.schedule, plan.weight_slots
        self._work = work
        self._replica, self._incarnation = replica, incarnation
        self._relay = relay_address(relay)
        self.fresh = NO_WEIGHTS
        """Weights that fresh work starts on. Others may be in use too."""
        self.ordered_weights: WeightsId | None = None
        """Weights to hold until the next order; None: the newest."""
        self.missing: WeightsId | None = None
        """Weights that it was ordered to hold and no relay has."""
        self.is_installing = False
        self._laid_over: WeightsId | None = None
        """Weights in use that are being overwritten."""
        self._newest = NO_WEIGHTS
        self._pulling_since: float | None = None
        self._asked_relay_at = float("-inf")
        self._is_leaving = False

    # ── installed weights ─────────────────────────────────────────────────────────────────────────────────────────

    @property
    def keeps_version(self) -> bool:
        return self._schedule.keeps_version

    @property
    def has_free_slot(self) -> bool:
        return len(self._work.in_use) < self._slots

    @property
    def residents(self) -> frozenset[WeightsId]:
        """The weights that work may run on. During an install, those in use: the rest may be overwritten."""
        if not self.is_installing:
            return self._work.in_use | {self.fresh} if self.keeps_version else frozenset({self.fresh})
        return self._work.in_use - {self._laid_over} if self.keeps_version else frozenset()

    @property
    def admits_fresh_work(self) -> bool:
        if not self.keeps_version:
            return True
        refresh = "keep" if self.ordered_weights is not None else self._refresh()
        would_fill_it = self.fresh not in self._work.in_use
        return not (refresh == "drain" or (refresh == "install" and would_fill_it))

    def of(self, task: GroupTask) -> WeightsId | None:
        """The weights that this task runs on; None: not held. Late samples join the weights of their group."""
        if not self.keeps_version and task.exact is None:
            return self.fresh
        weights = task.exact or self._work.weights_of(task.key) or self.fresh
        return weights if weights in self.residents else None

    def can_continue(self, weights: WeightsId) -> bool:
        """True if work that another replica began on these weights can resume here."""
        return weights in self.residents or not (self.keeps_version or self.is_installing)

    # ── wanted weights ────────────────────────────────────────────────────────────────────────────────────────────

    def on_hold_ordered(self, to_hold: WeightsId | None) -> None:
        if to_hold != self.ordered_weights:
            self.ordered_weights, self._pulling_since = to_hold, None

    def on_announced(self, weights: WeightsId) -> None:
        if weights > self._newest:
            self._newest, self._pulling_since = weights, None

    def on_missing(self, weights: WeightsId) -> bool:
        """True if the weights are the ones to hold."""
        if weights != self.ordered_weights:
            return False
        self.missing = weights
        return True

    def on_begun(self) -> None:
        """After work took the slot: the weights are requested again once it has ended."""
        if not self.has_free_slot:
            self._pulling_since = None

    def leave(self) -> None:
        self._is_leaving = True

    def switch_fresh_work(self) -> bool:
        """Switches fresh work to the wanted weights if they are in use here already. True if it did."""
        wanted = self._newest if self.ordered_weights is None else self.ordered_weights
        is_step = wanted > self.fresh if self.ordered_weights is None else wanted != self.fresh
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
            exact=self.ordered_weights if wanted is not None else None,
        )
        return [Send(to=self._relay, message=message)]

    def _wanted(self) -> WeightsId | None:
        """The weights to install next; None: keep the current ones."""
        if self.ordered_weights is not None:
            differs = self.ordered_weights not in (self.fresh, self.missing)
            return self.ordered_weights if differs and self.has_free_slot else None
        return self._newest if self._refresh() == "install" else None

    def _refresh(self) -> Refresh:
        return self._schedule.refresh(self._view(self._newest))

    def _view(self, newest: WeightsId) -> ReplicaWeightsView:
        return ReplicaWeightsView(
            weights=self.fresh, newest=newest, has_free_slot=self.has_free_slot, oldest=self._work.oldest
        )

    def _choose_overwritten(self, served: WeightsId) -> WeightsId | None:
        """The weights in use that `served` overwrites; None: no overwriting."""
        is_there = served in self._work.in_use
        if self.ordered_weights is not None or is_there or not self._schedule.lays_over(self._view(served)):
            return None
        return self._work.oldest

    def on_served(self, message: WeightsServed) -> list[Effect]:
        served = message.manifest.weights
        self._newest = max(self._newest, served)
        is_wanted = self.ordered_weights in (None, served) and served != self.fresh
        is_newer = self.ordered_weights is not None or served > self.fresh
        in_use = self._work.in_use
        has_place = self.has_free_slot and served not in in_use
        over = self._choose_overwritten(served)
        may_install = has_place or over is not None or (self.ordered_weights is None and not self.keeps_version)
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
            self._work.switch_weights(weights, of=self._laid_over)
        self._laid_over = None

    def on_refused(self, message: InstallRefused) -> None:
        self._laid_over = None
        self.is_installing = False  # requested again after ASK_AGAIN_AFTER_S, as if it had not arrived
        if message.is_gone:
            self._pulling_since = None
