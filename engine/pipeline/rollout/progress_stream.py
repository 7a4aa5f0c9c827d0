"""The progress stream of a replica: tracks what data has received, so that only new tokens are sent.

    ask ──▶ body: "from token 900 on" ──▶ stream, number 7 ──▶ data: "got 7, except one" ──▶ ask …

Invariants:
- an offset is data's acknowledgement for one run of a sample; a sample that begins again is sent whole again;
- lost tokens, lost in either direction, are sent again together with the new ones.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from engine.pipeline.effects import Effect, ReportProgress, Send
from engine.pipeline.messages.addresses import DATA
from engine.pipeline.messages.to_data import ProgressStreamed
from engine.pipeline.messages.to_rollout import ProgressAcknowledged
from engine.pipeline.packed import Ints
from engine.pipeline.records import AcknowledgedProgress, Growth, SampleKey, SampleProgress
from engine.policy.lineage import WeightsId

# An answer usually arrives before the next report; for lost answers, at most these reports are remembered.
MAX_UNANSWERED: Final = 8


class ProgressStream:
    def __init__(self, *, replica: int, incarnation: int) -> None:
        self._replica, self._incarnation = replica, incarnation
        self._acknowledged_by_key: dict[SampleKey, AcknowledgedProgress] = {}
        self._unanswered: dict[int, tuple[AcknowledgedProgress, ...]] = {}
        self._serial = 0

    def ask(self, running: Iterable[tuple[SampleKey, int]]) -> list[Effect]:
        """Requests new tokens of all running samples from the body."""
        acknowledged = tuple(self._acknowledged(key, sample_run) for key, sample_run in running)
        self._acknowledged_by_key = {each.key: each for each in acknowledged}
        return [ReportProgress(acknowledged=acknowledged)] if acknowledged else []

    def stream(self, progress: Sequence[SampleProgress]) -> list[Effect]:
        new = [each for each in progress if each.num_tokens > each.since or each.state is not None]
        if not new:
            return []
        self._serial += 1
        self._unanswered[self._serial] = tuple(
            AcknowledgedProgress(
                key=each.key,
                sample_run=each.sample_run,
                num_tokens=each.num_tokens,
                num_route_bytes=each.num_route_bytes,
                mark=each.mark,
            )
            for each in new
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

    def receive(self, answer: ProgressAcknowledged) -> None:
        reported = self._unanswered.get(answer.serial, ())
        self._unanswered = {serial: its for serial, its in self._unanswered.items() if serial > answer.serial}
        lacking = frozenset(answer.lacking)
        for each in reported:
            known = self._acknowledged_by_key.get(each.key)
            if known is not None and known.sample_run == each.sample_run:
                self._acknowledged_by_key[each.key] = _forget_progress(each) if each.key in lacking else each

    def _acknowledged(self, key: SampleKey, sample_run: int) -> AcknowledgedProgress:
        known = self._acknowledged_by_key.get(key)
        return (
            known
            if known is not None and known.sample_run == sample_run
            else AcknowledgedProgress(key=key, sample_run=sample_run)
        )


@dataclass(slots=True)
class _Growing:
    rows: list[tuple[int, ...]] = field(default_factory=list)
    packed_tokens: list[bytes] = field(default_factory=list)
    packed_routes: list[bytes] = field(default_factory=list)

    def add(self, progress: SampleProgress) -> None:
        key, since, routes_since = progress.key, progress.since, progress.routes_since
        of_sample = (key.group.ordinal, key.sample, progress.sample_run, progress.mark)
        num_new, num_new_route_bytes = progress.num_tokens - since, progress.num_route_bytes - routes_since
        self.rows.append((*of_sample, since, num_new, routes_since, num_new_route_bytes))
        self.packed_tokens.append(progress.packed_tokens)
        self.packed_routes.append(progress.packed_routes)

    def packed(self, weights: WeightsId) -> Growth:
        columns = map(Ints.of, zip(*self.rows, strict=True))
        ordinals, samples, sample_runs, marks, since, num_new, routes_since, num_new_route_bytes = columns
        return Growth(
            weights=weights,
            ordinals=ordinals,
            samples=samples,
            sample_runs=sample_runs,
            marks=marks,
            since=since,
            num_new=num_new,
            routes_since=routes_since,
            num_new_route_bytes=num_new_route_bytes,
            packed_tokens=b"".join(self.packed_tokens),
            packed_routes=b"".join(self.packed_routes),
        )


def _only_grew(progress: SampleProgress) -> bool:
    return progress.since > 0 and progress.state is None and len(progress.runs) == 1


def _forget_progress(acknowledged: AcknowledgedProgress) -> AcknowledgedProgress:
    return AcknowledgedProgress(key=acknowledged.key, sample_run=acknowledged.sample_run)
