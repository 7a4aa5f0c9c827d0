"""The partial response of a running sample, rebuilt from the increments that its replica streams.

Invariants:
- an increment is added only if it continues the account: same replica, same run of the sample, no gap;
- known tokens and routes are skipped, so increments may arrive twice, late and overlapping;
- routes are bytes that are only ever joined.
"""

from collections.abc import Sequence

from engine.pipeline.records import SampleKey, SampleProgress, VersionRun
from engine.policy.lineage import WeightsId

Owner = tuple[int, int]
"""Replica and incarnation."""


class Account:
    __slots__ = (
        "_counts",
        "_writers",
        "mark",
        "num_route_bytes",
        "num_tokens",
        "packed_routes",
        "packed_tokens",
        "reporter",
        "sample_run",
        "state",
    )

    def __init__(self, progress: SampleProgress, *, reporter: Owner) -> None:
        assert progress.since == 0, f"{progress.key} begins with token {progress.since}"
        self.reporter, self.sample_run = reporter, progress.sample_run
        self.num_tokens, self.state, self.mark = progress.num_tokens, progress.state, progress.mark
        self.packed_tokens = bytearray(progress.packed_tokens)
        self.packed_routes, self.num_route_bytes = bytearray(progress.packed_routes), progress.num_route_bytes
        self._writers = [run.weights for run in progress.runs]
        self._counts = [run.num_tokens for run in progress.runs]

    @property
    def writers(self) -> Sequence[WeightsId]:
        return self._writers

    def is_continued(
        self,
        *,
        reporter: Owner,
        sample_run: int,
        since: int,
        upto: int,
        routes_since: int,
        mark: int,
        brings_state: bool = False,
    ) -> bool:
        """True if tokens from `since` to `upto` continue this account, with their own or the known state."""
        if self.reporter != reporter or self.sample_run != sample_run:
            return False
        if since > self.num_tokens or routes_since > self.num_route_bytes:
            return False
        is_old = upto <= self.num_tokens and mark < self.mark
        return brings_state or mark == self.mark or is_old

    def has_routes(self, num_bytes: int, *, reporter: Owner, sample_run: int) -> bool:
        """True if it has the first `num_bytes` bytes of that run's routes."""
        is_same_run = self.reporter == reporter and self.sample_run == sample_run
        return is_same_run and num_bytes <= self.num_route_bytes

    def is_newer_than(self, progress: SampleProgress, *, reporter: Owner) -> bool:
        """Of two runs on one replica the later one wins, else the one with more tokens. `progress` is whole."""
        if self.reporter == reporter and 0 < progress.sample_run != self.sample_run:
            return progress.sample_run < self.sample_run
        if self.reporter == reporter and progress.sample_run == self.sample_run:
            return (self.num_tokens, self.mark) > (progress.num_tokens, progress.mark)
        return self.num_tokens > progress.num_tokens

    def add(self, weights: WeightsId, num_tokens: int, packed_tokens: bytes | memoryview, *, since: int) -> None:
        """Adds tokens from `since` on, all by these weights."""
        known = self.num_tokens - since
        if known >= num_tokens:
            return
        self.packed_tokens += packed_tokens[known * (len(packed_tokens) // num_tokens) :]
        self.num_tokens = since + num_tokens
        if not self._writers or self._writers[-1] != weights:
            self._writers.append(weights)
            self._counts.append(0)
        self._counts[-1] += num_tokens - known

    def add_routes(self, num_bytes: int, packed_routes: bytes | memoryview, *, since: int) -> None:
        """Adds routes from byte `since` on."""
        self.packed_routes += packed_routes[self.num_route_bytes - since :]
        self.num_route_bytes = max(self.num_route_bytes, since + num_bytes)

    def take(self, progress: SampleProgress) -> None:
        """Adds an increment that continues this account."""
        since, at = progress.since, 0
        width = len(progress.packed_tokens) // max(1, progress.num_tokens - since)
        for run in progress.runs:
            piece = progress.packed_tokens[at : at + run.num_tokens * width]
            self.add(run.weights, run.num_tokens, piece, since=since)
            since, at = since + run.num_tokens, at + len(piece)
        routes_since = progress.routes_since
        self.add_routes(progress.num_route_bytes - routes_since, progress.packed_routes, since=routes_since)
        if progress.state is not None and progress.mark > self.mark:
            self.state, self.mark = progress.state, progress.mark

    def progress(self, key: SampleKey) -> SampleProgress:
        """The whole progress, to resume from."""
        runs = zip(self._writers, self._counts, strict=True)
        return SampleProgress(
            key=key,
            num_tokens=self.num_tokens,
            runs=tuple(VersionRun(weights=weights, num_tokens=count) for weights, count in runs),
            state=self.state,
            packed_tokens=bytes(self.packed_tokens),
            packed_routes=bytes(self.packed_routes),
            num_route_bytes=self.num_route_bytes,
        )
