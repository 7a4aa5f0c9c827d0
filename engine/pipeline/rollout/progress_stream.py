"""What data has heard of a replica's samples, so that only what is new is told.

    asked ──▶ body: "from token 900 on" ──▶ streamed, number 7 ──▶ data: "heard 7, but for one" ──▶ asked …

Invariants:
- an offset is data's own word, of the run of the sample that is told: one that begins again is told whole again;
- what was not heard, whichever way it was lost, is told again together with what is new.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from engine.pipeline.effects import Effect, ReportProgress, Send
from engine.pipeline.messages.addresses import DATA
from engine.pipeline.messages.to_data import ProgressStreamed
from engine.pipeline.messages.to_rollout import ProgressHeard
from engine.pipeline.packed import Ints
from engine.pipeline.records import Growth, HeardUpTo, SampleKey, SampleProgress
from engine.policy.lineage import WeightsId

# An answer comes before the next is told; of those that never come, no more than these are remembered.
MAX_UNANSWERED: Final = 8


class Tellings:
    def __init__(self, *, replica: int, incarnation: int) -> None:
        self._replica, self._incarnation = replica, incarnation
        self._heard: dict[SampleKey, HeardUpTo] = {}
        self._unanswered: dict[int, tuple[HeardUpTo, ...]] = {}
        self._serial = 0

    def ask(self, running: Iterable[tuple[SampleKey, int]]) -> list[Effect]:
        """About all that run."""
        heard = tuple(self._known(key, telling) for key, telling in running)
        self._heard = {each.key: each for each in heard}
        return [ReportProgress(heard=heard)] if heard else []

    def stream(self, progress: Sequence[SampleProgress]) -> list[Effect]:
        new = [each for each in progress if each.num_tokens > each.since or each.state is not None]
        if not new:
            return []
        self._serial += 1
        self._unanswered[self._serial] = tuple(
            HeardUpTo(key=each.key, telling=each.telling, num_tokens=each.num_tokens, mark=each.mark) for each in new
        )
        if len(self._unanswered) > MAX_UNANSWERED:
            del self._unanswered[next(iter(self._unanswered))]
        growth: dict[WeightsId, _Growing] = {}
        for each in filter(_only_grew, new):
            growth.setdefault(each.runs[0].weights, _Growing()).add(each)
        streamed = ProgressStreamed(
            replica=self._replica,
            incarnation=self._incarnation,
            serial=self._serial,
            progress=tuple(each for each in new if not _only_grew(each)),
            growth=tuple(its.packed(weights) for weights, its in growth.items()),
        )
        return [Send(to=DATA, message=streamed)]

    def hear(self, answer: ProgressHeard) -> None:
        told = self._unanswered.get(answer.serial, ())
        self._unanswered = {serial: its for serial, its in self._unanswered.items() if serial > answer.serial}
        lacking = frozenset(answer.lacking)
        for each in told:
            known = self._heard.get(each.key)
            if known is not None and known.telling == each.telling:
                self._heard[each.key] = _nothing_of(each) if each.key in lacking else each

    def _known(self, key: SampleKey, telling: int) -> HeardUpTo:
        known = self._heard.get(key)
        return known if known is not None and known.telling == telling else HeardUpTo(key=key, telling=telling)


@dataclass(slots=True)
class _Growing:
    rows: list[tuple[int, int, int, int, int, int]] = field(default_factory=list)
    said: list[bytes] = field(default_factory=list)

    def add(self, progress: SampleProgress) -> None:
        key, since = progress.key, progress.since
        num_new = progress.num_tokens - since
        self.rows.append((key.group.ordinal, key.sample, progress.telling, progress.mark, since, num_new))
        self.said.append(progress.said)

    def packed(self, weights: WeightsId) -> Growth:
        ordinals, samples, tellings, marks, since, num_new = map(Ints.of, zip(*self.rows, strict=True))
        return Growth(
            weights=weights,
            ordinals=ordinals,
            samples=samples,
            tellings=tellings,
            marks=marks,
            since=since,
            num_new=num_new,
            said=b"".join(self.said),
        )


def _only_grew(progress: SampleProgress) -> bool:
    return progress.since > 0 and progress.state is None and len(progress.runs) == 1


def _nothing_of(heard: HeardUpTo) -> HeardUpTo:
    return HeardUpTo(key=heard.key, telling=heard.telling)
