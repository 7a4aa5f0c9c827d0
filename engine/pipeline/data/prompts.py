"""The prompt pool: the training prompt to start next, and the weights to start it on.

Invariants:
- prompts start in order of their ordinals; a prompt whose end was taken back comes before those never started;
- with windows, the groups of a window start from weights no staler than those at its beginning;
- a window too stale to train on is closed, whatever it has left to open.
"""

from dataclasses import dataclass

from engine.pipeline.data.groups import OpenGroup
from engine.pipeline.data.state import DataState
from engine.pipeline.records import GroupKey
from engine.policy.lineage import WeightsId
from engine.policy.schedule import DemandView


@dataclass(slots=True, kw_only=True)
class Window:
    version: int
    """The newest published version when the window began."""
    left: int


class PromptPool:
    def __init__(self, state: DataState) -> None:
        self._state = state
        self._schedule = state.plan.schedule
        self._next_ordinal = 0
        self._window: Window | None = None
        self._num_ended = 0

    def begin_anew(self) -> None:
        """Starts over after ends were taken back: their prompts may start again."""
        self._next_ordinal, self._window = 0, None

    def replace_lost(self) -> None:
        """Replaces groups that ended untrained, within the current window."""
        num_lost = self._state.num_lost_groups
        if self._window is not None:
            self._window.left += num_lost - self._num_ended
        self._num_ended = num_lost

    @property
    def is_dry(self) -> bool:
        """No group waits and none may start on any weights. True after nearly every message, which saves a loop over
        hundreds of replicas."""
        if any(book.num_unowned for book in self._state.books()):
            return False
        demand = self._demand()
        if self._schedule.window_steps and self._schedule.next_window(demand):
            return False
        return not self._schedule.may_start(demand, lag=0)

    def start(self, weights: WeightsId) -> OpenGroup | None:
        """The next new group, for a replica on these weights; None if the schedule allows none."""
        if not self._state.may_start_on(weights):
            return None
        self._close_stale_window()
        self._open_window(self._demand())
        demand = self._demand()
        if not self._schedule.may_start(demand, lag=self._lag(weights)):
            return None
        if self._window is not None:
            self._window.left -= 1
        while not self._state.is_unknown(key := GroupKey(ordinal=self._next_ordinal)):
            self._next_ordinal = max(self._next_ordinal + 1, self._state.ledger.first_open(self._next_ordinal))
        self._next_ordinal += 1
        return self._state.training.open(key)

    def may_begin(self, weights: WeightsId) -> bool:
        """True if a group that lost its replica may begin again on these weights."""
        start_lag = self._schedule.start_lag
        is_fresh = start_lag is None or self._lag(weights) <= start_lag
        return is_fresh and self._state.may_start_on(weights)

    def to_hold(self) -> WeightsId | None:
        """Weights that their replicas must keep until the window's last group has begun."""
        self._close_stale_window()
        window = self._window
        if window is None or not (window.left or self._state.training.num_unowned):
            return None
        return WeightsId(self._state.lineage.epoch, window.version)

    def _lag(self, weights: WeightsId) -> int:
        at = self._published if self._window is None else self._window.version
        return self._state.lineage.staleness(weights, at=at)

    @property
    def _published(self) -> int:
        """The newest published version."""
        state = self._state
        version = state.trained_version
        while version > state.first_version and not state.plan.publishes(version):
            version -= 1
        return version

    def _close_stale_window(self) -> None:
        """A restarted brain may open more than a step needs; the rest would be generated and dropped forever."""
        if self._window is None:
            return
        lineage, trained = self._state.lineage, self._state.trained_version
        staleness = lineage.staleness(WeightsId(lineage.epoch, self._window.version), at=trained)
        if not self._schedule.may_train(staleness=staleness):
            self._window = None

    def _open_window(self, demand: DemandView) -> None:
        if not self._schedule.window_steps:
            return
        size = self._schedule.next_window(demand)
        if size:
            self._window = Window(version=self._published, left=size)

    def _demand(self) -> DemandView:
        state = self._state
        return DemandView(
            num_open=state.num_open,
            groups_per_step=state.plan.groups_per_step,
            steps_left=state.plan.steps - state.trained_version,
            num_in_progress=len(state.training),
            num_ready=len(state.ready),
            left_of_window=0 if self._window is None else self._window.left,
        )
