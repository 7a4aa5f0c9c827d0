"""The progress stream of a replica: increments survive loss, duplicates and delays, and never mix two runs."""

import random
from dataclasses import dataclass, field

import pytest

from engine.pipeline.data.groups import GroupBook
from engine.pipeline.data.partials import PartialPool
from engine.pipeline.effects import ReportProgress
from engine.pipeline.messages.to_data import ProgressStreamed
from engine.pipeline.messages.to_rollout import ProgressAcknowledged
from engine.pipeline.records import AcknowledgedProgress, GroupKey, SampleKey, SampleProgress, VersionRun
from engine.pipeline.rollout.progress_stream import ProgressStream
from engine.policy.lineage import WeightsId
from tests.engine.pipeline.brain_builders import of

GROUP = GroupKey(ordinal=3)
WIDTH = 4
ROUTE_BYTES = 3


@dataclass
class RunningSample:
    """A token encodes its run and position, as does its route, which is known once the next token is there. Every tenth
    token is by other weights, every seventh ends a turn."""

    key: SampleKey
    sample_run: int
    num_tokens: int = 0

    def packed_tokens(self, start: int, stop: int) -> bytes:
        return b"".join(bytes([self.sample_run % 256, at % 256, at // 256, 0]) for at in range(start, stop))

    @property
    def num_route_bytes(self) -> int:
        return max(0, self.num_tokens - 1) * ROUTE_BYTES

    def packed_routes(self, since: int) -> bytes:
        return bytes((self.sample_run + at) % 251 for at in range(since, self.num_route_bytes))

    def runs(self, start: int, stop: int) -> tuple[VersionRun, ...]:
        versions = [at // 10 for at in range(start, stop)]
        return tuple(
            VersionRun(weights=WeightsId(0, version), num_tokens=versions.count(version))
            for version in sorted(set(versions))
        )

    def since(self, acknowledged: AcknowledgedProgress) -> SampleProgress:
        mark, since, routes_since = self.num_tokens // 7, acknowledged.num_tokens, acknowledged.num_route_bytes
        return SampleProgress(
            key=self.key,
            num_tokens=self.num_tokens,
            runs=self.runs(since, self.num_tokens),
            state=None if since and mark == acknowledged.mark else f"turn {mark} of {self.sample_run}",
            packed_tokens=self.packed_tokens(since, self.num_tokens),
            packed_routes=self.packed_routes(routes_since),
            num_route_bytes=self.num_route_bytes,
            since=since,
            routes_since=routes_since,
            sample_run=acknowledged.sample_run,
            mark=mark,
        )


@dataclass
class Both:
    """A replica's samples, and data, which may restart."""

    stream: ProgressStream = field(default_factory=lambda: ProgressStream(replica=0, incarnation=0))
    samples: list[RunningSample] = field(default_factory=list)
    num_runs: int = 0

    def __post_init__(self) -> None:
        self.data_dies()
        for number in range(3):
            self.begin(number)

    def data_dies(self) -> None:
        self.pool, self.book = PartialPool(keeps_version=False), GroupBook(num_samples=3)
        self.group = self.book.open(GROUP)
        self.book.assign(self.group, (0, 0), lease=1, now=0.0)

    def begin(self, number: int) -> None:
        self.num_runs += 1
        sample = RunningSample(SampleKey(group=GROUP, sample=number), sample_run=self.num_runs)
        self.samples[number : number + 1] = [sample]

    def report(self) -> ProgressStreamed | None:
        requests = of(self.stream.ask([(each.key, each.sample_run) for each in self.samples]), ReportProgress)
        by_key = {each.key: each for each in self.samples}
        streamed = of(
            self.stream.stream(
                [by_key[acknowledged.key].since(acknowledged) for acknowledged in requests[0].acknowledged]
            ),
            ProgressStreamed,
        )
        return streamed[0] if streamed else None

    def receive(self, message: ProgressStreamed) -> ProgressAcknowledged:
        lacking = self.pool.receive(message, self.book)
        self.check()
        return ProgressAcknowledged(incarnation=0, serial=message.serial, lacking=lacking)

    def check(self) -> None:
        for sample, account in self.group.progress.items():
            known = account.progress(SampleKey(group=GROUP, sample=sample))
            run = RunningSample(known.key, sample_run=account.sample_run, num_tokens=known.num_tokens)
            assert known == SampleProgress(
                key=known.key,
                num_tokens=known.num_tokens,
                runs=run.runs(0, known.num_tokens),
                state=f"turn {known.num_tokens // 7} of {account.sample_run}",
                packed_tokens=run.packed_tokens(0, known.num_tokens),
                packed_routes=run.packed_routes(0),
                num_route_bytes=run.num_route_bytes,
            )


@pytest.mark.parametrize("seed", range(200))
def test_data_never_mixes_tokens_of_two_runs_of_a_sample(seed: int) -> None:
    chance, both = random.Random(seed), Both()
    to_data: list[ProgressStreamed] = []
    to_replica: list[ProgressAcknowledged] = []
    for _ in range(60):
        for sample in both.samples:
            sample.num_tokens += chance.randrange(5)
        match chance.randrange(12):
            case 0:
                both.begin(chance.randrange(3))
            case 1:
                both.data_dies()
            case 2 | 3 | 4 | 5:
                streamed = both.report()
                to_data += [streamed] * chance.choice((0, 1, 1, 1, 2)) if streamed is not None else []
            case 6 | 7 | 8 if to_data:
                acknowledged = both.receive(to_data.pop(chance.randrange(len(to_data))))
                to_replica += [acknowledged] * chance.choice((0, 1, 1, 1, 2))
            case _ if to_replica:
                both.stream.receive(to_replica.pop(chance.randrange(len(to_replica))))
    for _ in range(3):  # no more losses
        for sample in both.samples:
            sample.num_tokens += 1
        streamed = both.report()
        assert streamed is not None
        both.stream.receive(both.receive(streamed))
    accounts = {sample: (account.sample_run, account.num_tokens) for sample, account in both.group.progress.items()}
    assert accounts == {each.key.sample: (each.sample_run, each.num_tokens) for each in both.samples}


def test_acknowledged_tokens_are_not_sent_again() -> None:
    both = Both()
    for sample in both.samples:
        sample.num_tokens = 1
    first = both.report()
    assert first is not None and [each.since for each in first.progress] == [0, 0, 0]
    both.stream.receive(both.receive(first))
    for sample in both.samples:
        sample.num_tokens = 6
    second = both.report()
    assert second is not None and not second.progress
    [growth] = second.growth
    assert list(growth.since) == [1, 1, 1] and len(growth.packed_tokens) == 3 * 5 * WIDTH
    assert list(growth.routes_since) == [0, 0, 0] and len(growth.packed_routes) == 3 * 5 * ROUTE_BYTES
    both.stream.receive(both.receive(second))
    assert both.report() is None, "nothing is new"


def test_lost_tokens_are_sent_with_the_new_ones() -> None:
    both = Both()
    for num_tokens in (1, 3, 5):
        for sample in both.samples:
            sample.num_tokens = num_tokens
        streamed = both.report()
        assert streamed is not None
        if num_tokens != 3:
            both.stream.receive(both.receive(streamed))
    assert {account.num_tokens for account in both.group.progress.values()} == {5}


def test_restarted_data_gets_whole_samples() -> None:
    both = Both()
    for num_tokens in (1, 2, 3):
        for sample in both.samples:
            sample.num_tokens = num_tokens
        streamed = both.report()
        assert streamed is not None
        acknowledged = both.receive(streamed)
        assert len(acknowledged.lacking) == (3 if num_tokens == 2 else 0)
        both.stream.receive(acknowledged)
        if num_tokens == 1:
            both.data_dies()
    assert {account.num_tokens for account in both.group.progress.values()} == {3}
