"""An account of an unfinished sample: what it said so far, as its replica told it piece by piece.

Invariants:
- only what continues it is added: of the same run of the sample on the same replica, without a gap;
- what was told before is passed over, so pieces may come twice, late and overlapping.
"""

from collections.abc import Sequence

from engine.pipeline.records import SampleKey, SampleProgress, VersionRun
from engine.policy.lineage import WeightsId

Owner = tuple[int, int]
"""Replica and incarnation."""


class Account:
    __slots__ = ("_counts", "_writers", "mark", "num_tokens", "said", "state", "teller", "telling")

    def __init__(self, progress: SampleProgress, *, teller: Owner) -> None:
        assert progress.since == 0, f"{progress.key} begins with token {progress.since}"
        self.teller, self.telling = teller, progress.telling
        self.num_tokens, self.state, self.mark = progress.num_tokens, progress.state, progress.mark
        self.said = bytearray(progress.said)
        self._writers = [run.weights for run in progress.runs]
        self._counts = [run.num_tokens for run in progress.runs]

    @property
    def writers(self) -> Sequence[WeightsId]:
        return self._writers

    def is_continued(
        self, *, teller: Owner, telling: int, since: int, upto: int, mark: int, brings_state: bool = False
    ) -> bool:
        """By tokens from the one offset to the other, of the state that is known here unless they bring theirs."""
        if self.teller != teller or self.telling != telling or since > self.num_tokens:
            return False
        is_old = upto <= self.num_tokens and mark < self.mark
        return brings_state or mark == self.mark or is_old

    def is_newer_than(self, progress: SampleProgress, *, teller: Owner) -> bool:
        """Than one that is whole. Of two runs on one replica the later counts, else the one that says more."""
        if self.teller == teller and 0 < progress.telling != self.telling:
            return progress.telling < self.telling
        if self.teller == teller and progress.telling == self.telling:
            return (self.num_tokens, self.mark) > (progress.num_tokens, progress.mark)
        return self.num_tokens > progress.num_tokens

    def add(self, weights: WeightsId, num_tokens: int, said: bytes | memoryview, *, since: int) -> None:
        """Tokens from `since` on, all by these weights."""
        known = self.num_tokens - since
        if known >= num_tokens:
            return
        self.said += said[known * (len(said) // num_tokens) :]
        self.num_tokens = since + num_tokens
        if not self._writers or self._writers[-1] != weights:
            self._writers.append(weights)
            self._counts.append(0)
        self._counts[-1] += num_tokens - known

    def take(self, progress: SampleProgress) -> None:
        """Of a piece that continues this."""
        since, at = progress.since, 0
        width = len(progress.said) // max(1, progress.num_tokens - since)
        for run in progress.runs:
            piece = progress.said[at : at + run.num_tokens * width]
            self.add(run.weights, run.num_tokens, piece, since=since)
            since, at = since + run.num_tokens, at + len(piece)
        if progress.state is not None and progress.mark > self.mark:
            self.state, self.mark = progress.state, progress.mark

    def progress(self, key: SampleKey) -> SampleProgress:
        """Whole, to go on from."""
        runs = zip(self._writers, self._counts, strict=True)
        return SampleProgress(
            key=key,
            num_tokens=self.num_tokens,
            runs=tuple(VersionRun(weights=weights, num_tokens=count) for weights, count in runs),
            state=self.state,
            said=bytes(self.said),
        )
