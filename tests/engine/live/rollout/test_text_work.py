"""Texts that another process makes: decoding continues meanwhile, and no sample is lost, moved or reported without its
text."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from queue import Empty, Queue
from threading import Event, current_thread

import pytest

from engine.live.body.loop import BodyCall
from engine.live.rollout.text_work import ThreadedTexts
from engine.live.rollout.wording import DecodedTurn, Wording
from engine.models.loading import DEMO_FOLDER
from engine.models.tokenizer import Tokenizer
from engine.pipeline.effects import HandOverSequences, ReportProgress, StartSequences
from engine.pipeline.messages.to_rollout import ProgressReported, WeightsInstalled
from engine.pipeline.records import AcknowledgedProgress, SampleKey, Trajectory
from tests.engine.live.rollout.test_body import GROUP, HELD, SAMPLES, TASK, V0, V1, Replica, unmoved

pytestmark = pytest.mark.usefixtures("one_thread")

WITHIN_S = 120.0
POLLS_EVERY_S = 0.01
KEYS = {SampleKey(group=GROUP, sample=sample) for sample in SAMPLES}


class SlowWording(Wording):
    """Texts of another process; a turn's text takes until `may_decode` is set."""

    def __init__(self) -> None:
        super().__init__(Tokenizer.from_folder(DEMO_FOLDER), None, is_bounded=True)
        self.may_decode, self.is_decoding = Event(), Event()
        self.may_decode.set()

    def decode(self, ids: Sequence[int]) -> DecodedTurn:
        self.is_decoding.set()
        assert self.may_decode.wait(WITHIN_S)
        return super().decode(ids)


class BoundedReplica(Replica):
    def __init__(self, environment: str, number: int = 0) -> None:
        self.wording, self.environment_name = SlowWording(), environment
        super().__init__(environment, number, wording=self.wording)

    def turn(self) -> None:
        """As the loop: works while there is work, else waits for a call."""
        self.answer()
        with suppress(Empty):
            self.receive(self.calls.get(timeout=0.0 if self.body.is_busy else POLLS_EVERY_S)(self.body))
        if self.body.is_busy:
            self.steps(1)

    def run_until_a_text_is_awaited(self) -> None:
        self.wording.may_decode.clear()
        while not self.wording.is_decoding.is_set():
            self.turn()


def finish(*replicas: BoundedReplica) -> dict[SampleKey, Trajectory]:
    while sum(len(each.ended) for each in replicas) < len(SAMPLES):
        for each in replicas:
            each.turn()
    return {key: trajectory for each in replicas for key, trajectory in each.ended.items()}


def tokens_of(ended: dict[SampleKey, Trajectory]) -> dict[SampleKey, list[int]]:
    return {key: list(each.content.response_ids) for key, each in ended.items() if each.content is not None}


@pytest.fixture(params=["running_sums", "tool_sums"])
def replica(request: pytest.FixtureRequest) -> Iterator[BoundedReplica]:
    replica = BoundedReplica(request.param)
    replica.body.perform(StartSequences(tasks=(TASK,)))
    yield replica
    replica.wording.may_decode.set()


def test_replica_decodes_on_while_a_text_is_awaited(replica: BoundedReplica) -> None:
    replica.run_until_a_text_is_awaited()
    while any(engine.view().num_running for engine in replica.engines):
        replica.turn()
    assert not replica.asks and not replica.ended, "every sample waits for its first turn's text"
    replica.wording.may_decode.set()
    assert tokens_of(finish(replica)) == tokens_of(unmoved(replica.environment_name))


def test_sample_that_moves_takes_its_awaited_text_along(replica: BoundedReplica) -> None:
    host = BoundedReplica(replica.environment_name, number=1)
    replica.run_until_a_text_is_awaited()
    replica.wording.may_decode.set()
    replica.body.perform(HandOverSequences(group=HELD, host=1, host_incarnation=0, weights=V0))
    [handed] = replica.handed
    assert {progress.key for progress in handed.progress} | replica.ended.keys() == KEYS
    host.take_over(handed)
    assert tokens_of(finish(replica, host)) == tokens_of(unmoved(replica.environment_name))


def test_report_of_progress_has_every_sample(replica: BoundedReplica) -> None:
    replica.run_until_a_text_is_awaited()
    replica.wording.may_decode.set()
    order = ReportProgress(acknowledged=tuple(AcknowledgedProgress(key=key, sample_run=1) for key in KEYS))
    [reported] = replica.body.perform(order)
    assert isinstance(reported, ProgressReported)
    assert {progress.key for progress in reported.progress} | replica.ended.keys() == KEYS


def test_sample_with_an_awaited_text_goes_on_with_new_weights(replica: BoundedReplica) -> None:
    replica.run_until_a_text_is_awaited()
    assert isinstance(replica.install(1, in_flight="keep", over=V0), WeightsInstalled)
    replica.wording.may_decode.set()
    several = [each for each in finish(replica).values() if each.content is not None and each.content.written]
    assert all(each.runs[-1].weights == V1 for each in several)
    assert bool(several) == (replica.environment_name == "tool_sums")


def test_text_that_fails_ends_its_sample_alone(replica: BoundedReplica, monkeypatch: pytest.MonkeyPatch) -> None:
    failed: list[Sequence[int]] = []

    def fail_once(self: Tokenizer, ids: Sequence[int]) -> str:
        if not failed:
            failed.append(ids)
            raise ValueError("it panicked")
        return decode(self, ids)

    decode = Tokenizer.decode
    monkeypatch.setattr(Tokenizer, "decode", fail_once)
    failures = [each.failure for each in finish(replica).values() if each.failure is not None]
    assert [(each.blame, "it panicked" in each.reason) for each in failures] == [("user_code", True)]


def test_values_and_exceptions_arrive_in_order_on_the_callers_thread() -> None:
    calls: Queue[BodyCall] = Queue()
    work, arrived = ThreadedTexts(calls.put_nowait), list[object]()

    def then(value: object) -> None:
        arrived.append((type(value).__name__, current_thread()))

    for piece in (lambda: 1, lambda: [][0], lambda: "text"):
        work.begin(piece, then)
    work.settle()
    assert arrived == [(name, current_thread()) for name in ("int", "IndexError", "str")]
    for _ in range(3):
        calls.get(timeout=WITHIN_S)
