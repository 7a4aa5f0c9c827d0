"""A replica's body with the real engine, model and environment: each started sample ends once, here or elsewhere."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from queue import Queue

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer as RawTokenizer
from tokenizers import processors

from engine.environments.port import Observation, Prompt, Verdict, conclude
from engine.environments.registry import make_environment
from engine.environments.tools.tool_sums import ToolSums
from engine.inference.port import KvPages
from engine.inference.torch_engine import TorchRolloutEngine
from engine.live.body.loop import BodyCall
from engine.live.environment.turns import Answer, Ask
from engine.live.kv import fetches
from engine.live.kv.offers import Offered
from engine.live.process.links import Links
from engine.live.rollout.body import RolloutBody, Wires
from engine.live.rollout.weight_slots import WeightSlots
from engine.live.rollout.wording import Wording
from engine.live.weights.segments import Segment
from engine.models.loading import DEMO_FOLDER
from engine.models.tokenizer import Tokenizer
from engine.pipeline.data.accounts import Account
from engine.pipeline.effects import (
    HandOverSequences,
    InstallWeights,
    ReportProgress,
    ResumeSequences,
    StartSequences,
    StopSequences,
)
from engine.pipeline.messages.addresses import Address
from engine.pipeline.messages.message import Message
from engine.pipeline.messages.to_driver import ReplicaObserved
from engine.pipeline.messages.to_rollout import (
    LoadMeasured,
    ProgressReported,
    SequencesHandedOver,
    TrajectoriesEnded,
    WeightsInstalled,
)
from engine.pipeline.plan import Plan
from engine.pipeline.records import (
    AcknowledgedProgress,
    GroupKey,
    GroupTask,
    HeldGroup,
    SampleKey,
    SampleProgress,
    Trajectory,
)
from engine.pipeline.rollout.brain import RolloutBrain
from engine.policy.lineage import WeightsId
from engine.policy.schedule import InFlight
from engine.spec.job import JobSpec
from engine.weights.port import Probe, WeightVersion
from engine.weights.probe import OtherWeights, probe_ids
from engine.weights.snapshot import pack_weights


class LoopbackLinks(Links):
    def address(self) -> str:
        return "127.0.0.1"


LINKS = LoopbackLinks()
WITHIN_S = 120.0

pytestmark = pytest.mark.usefixtures("one_thread")  # like every actor on a CPU

GROUP = GroupKey(ordinal=5)
SAMPLES = (0, 1, 2, 3)
TASK = GroupTask(key=GROUP, samples=SAMPLES, lease=1)
HELD = HeldGroup(key=GROUP, lease=1, samples=SAMPLES)
V0, V1, V2 = WeightsId(0, 0), WeightsId(0, 1), WeightsId(0, 2)


@cache
def weights_of(version: int) -> WeightVersion:
    """Version 0 is the demo model; each other version differs from it by small noise of its own."""
    generator = torch.Generator().manual_seed(version)
    stored = load_file(DEMO_FOLDER / "model.safetensors")
    moved = {name: value + 0.02 * torch.randn(value.shape, generator=generator) for name, value in stored.items()}
    return pack_weights(moved if version else stored, weights=WeightsId(0, version))


def spec(environment: str, **rollout: object) -> JobSpec:
    params = {"waits": "none"} if environment == "tool_sums" else {}
    return JobSpec.model_validate(
        {
            "name": "body",
            "environment": {"name": environment, "params": params},
            "rollout": {"max_batch": 8, "max_new_tokens": 40, **rollout},
        }
    )


class Replica:
    """A body whose environment answers when `answer` is called."""

    def __init__(
        self,
        environment: str = "running_sums",
        number: int = 0,
        tokenizer: Tokenizer | None = None,
        wording: Wording | None = None,
        **rollout: object,
    ) -> None:
        job = spec(environment, **rollout)
        plan = Plan.from_spec(job)
        self.kv_tokens = job.rollout.kv_tokens
        self.asks: deque[Ask] = deque()
        self.handed: list[SequencesHandedOver] = []
        self.environment = make_environment(job.environment, seed=0, data_folder=None)
        self.engines: list[TorchRolloutEngine] = []
        self.observed: list[ReplicaObserved] = []
        self.calls: Queue[BodyCall] = Queue()
        self.body = RolloutBody(
            spec=job,
            brain=RolloutBrain(plan, replica=number, incarnation=0),
            replica=number,
            incarnation=0,
            slots=WeightSlots(self._make_engine, num_slots=plan.weight_slots),
            wording=wording or Wording(tokenizer or Tokenizer.from_folder(DEMO_FOLDER), None),
            wires=Wires(post=self._post, ask=self._ask, observe=self.observed.append, on_loop=self.calls.put_nowait),
            links=LINKS,
        )
        self.ended: dict[SampleKey, Trajectory] = {}
        self.install(0)

    def _make_engine(self) -> TorchRolloutEngine:
        self.engines.append(TorchRolloutEngine(DEMO_FOLDER, max_batch=8, device="cpu", kv_tokens=self.kv_tokens))
        return self.engines[-1]

    def weights_of(self, version: int) -> WeightVersion:
        return weights_of(version)

    def install(
        self,
        version: int,
        *,
        keeps: tuple[WeightsId, ...] = (),
        in_flight: InFlight = "pin",
        over: WeightsId | None = None,
        probe: Probe | None = None,
    ) -> Message:
        weights = self.weights_of(version)
        segment = Segment.create("test", len(weights.buffer))
        segment.buffer[:] = weights.buffer
        manifest = replace(weights.manifest, probe=probe)
        order = InstallWeights(manifest=manifest, payload=segment.shared, in_flight=in_flight, keeps=keeps, over=over)
        [reply] = self.body.perform(order)
        segment.remove()
        return reply

    def _post(self, to: Address, message: Message) -> None:
        assert isinstance(message, SequencesHandedOver)
        self.handed.append(message)

    def _ask(self, asks: Sequence[Ask]) -> None:
        self.asks.extend(asks)

    def answer(self) -> None:
        while self.asks:
            self.answer_one()

    def answer_one(self) -> None:
        ask = self.asks.popleft()
        answer: Prompt | Observation | Verdict
        if ask.prompt is None:
            answer = self.environment.prompt(ask.key.group.split, ask.key.group.ordinal)
        elif ask.is_truncated:
            answer = conclude(self.environment, ask.prompt, ask.turns)
        else:
            answer = self.environment.respond(ask.prompt, ask.turns)
        self.receive(self.body.on_answers([Answer(id=ask.id, result=answer)]))

    def receive(self, messages: list[Message]) -> None:
        for message in messages:
            if isinstance(message, TrajectoriesEnded):
                for trajectory in message.trajectories:
                    assert trajectory.key not in self.ended
                    self.ended[trajectory.key] = trajectory

    def steps(self, number: int) -> None:
        for _ in range(number):
            self.receive(self.body.work())

    def settle(self) -> None:
        """Runs until no pages are in transit to this replica."""
        while self.body.is_awaiting_pages:
            self.receive(self.calls.get(timeout=WITHIN_S)(self.body))

    def take_over(self, handed: SequencesHandedOver) -> None:
        self.body.perform(ResumeSequences(handed=handed))
        self.settle()

    def finish(self) -> None:
        for _ in range(1_000):
            self.answer()
            if not self.body.is_busy and not self.asks:
                return
            self.receive(self.body.work())
        raise AssertionError("the samples do not end")


def unmoved(environment: str) -> dict[SampleKey, Trajectory]:
    replica = Replica(environment)
    replica.body.perform(StartSequences(tasks=(TASK,)))
    replica.finish()
    return replica.ended


@pytest.mark.parametrize("environment", ["running_sums", "tool_sums"])
def test_every_sample_that_is_started_ends_exactly_once(environment: str) -> None:
    ended = unmoved(environment)
    assert {key.sample for key in ended} == set(SAMPLES)
    for trajectory in ended.values():
        content = trajectory.content
        assert content is not None and not trajectory.failure
        assert len(content.response_ids) == len(content.logprobs) == trajectory.num_tokens


def test_weights_that_fail_the_trainers_probe_are_refused() -> None:
    replica = Replica()
    row = probe_ids(100, max_positions=64)
    logprobs = replica.engines[0].probe(row)
    right = Probe(token_ids=row, logprobs=logprobs, tolerance=1e-3)
    assert replica.install(0, probe=right) == WeightsInstalled(weights=WeightsId(0, 0))
    wrong = replace(right, logprobs=(logprobs[0] + 1.0, *logprobs[1:]))
    with pytest.raises(OtherWeights, match=r"the largest difference is 1, at token 1 .* rollout\.engine"):
        replica.install(0, probe=wrong)
    with pytest.raises(OtherWeights, match=r"nan.* training has diverged: lower optimizer\.learning_rate"):
        replica.install(0, probe=replace(right, logprobs=(float("nan"), *logprobs[1:])))


def test_later_turns_mark_the_environments_tokens() -> None:
    contents = [trajectory.content for trajectory in unmoved("tool_sums").values()]
    several = [content for content in contents if content is not None and content.written]
    assert several, "no sample had a second turn"
    for content in several:
        assert len(content.written) == len(content.response_ids)
        assert all(
            written or logprob == 0.0 for written, logprob in zip(content.written, content.logprobs, strict=True)
        )


def test_text_has_one_begin_token_if_the_tokenizer_adds_it() -> None:
    """Tokenizers of Llama add one to every text that they encode."""
    raw = RawTokenizer.from_file(str(DEMO_FOLDER / "tokenizer.json"))
    begins = raw.token_to_id("<pad>")
    raw.post_processor = processors.TemplateProcessing(single="<pad> $A", special_tokens=[("<pad>", begins)])
    replica = Replica("tool_sums", tokenizer=Tokenizer(raw, Tokenizer.from_folder(DEMO_FOLDER).eos_ids))
    replica.body.perform(StartSequences(tasks=(TASK,)))
    replica.finish()
    contents = [trajectory.content for trajectory in replica.ended.values()]
    several = [content for content in contents if content is not None and content.written]
    assert several, "no sample had a second turn"
    for content in several:
        response = zip(content.response_ids, content.written, strict=True)
        assert content.prompt_ids[0] == begins
        assert begins not in [token for token, written in response if not written]


class Mute(Tokenizer):
    """A tokenizer whose decoder fails."""

    def decode(self, ids: Sequence[int]) -> str:
        raise ValueError("PanicException: retry-limit-in-match over")


def test_decoder_that_fails_ends_its_sample_by_the_users_code() -> None:
    raw = RawTokenizer.from_file(str(DEMO_FOLDER / "tokenizer.json"))
    replica = Replica(tokenizer=Mute(raw, Tokenizer.from_folder(DEMO_FOLDER).eos_ids))
    replica.body.perform(StartSequences(tasks=(TASK,)))
    replica.finish()
    failures = [trajectory.failure for trajectory in replica.ended.values()]
    assert len(failures) == len(SAMPLES)
    assert all(failure and failure.blame == "user_code" and "PanicException" in failure.reason for failure in failures)


class Wordy(ToolSums):
    """An environment whose first observation exceeds the demo model's context."""

    def observation(self, prompt: Prompt, num_turns: int) -> Observation:
        return Observation(text=" 1 + 2 =" * 200, role="tool")


def test_conversation_beyond_the_context_is_truncated_and_judged() -> None:
    replica = Replica("tool_sums")
    replica.environment = Wordy(seed=0, turns=2, waits="none")
    replica.body.perform(StartSequences(tasks=(TASK,)))
    replica.finish()
    assert {key.sample for key in replica.ended} == set(SAMPLES)
    for trajectory in replica.ended.values():
        assert trajectory.failure is None and trajectory.cut and trajectory.content is not None
        assert "should be" in trajectory.content.remark, "its environment judged it"
        assert all(trajectory.content.written), "the observation that did not fit is left out"


def test_conversation_uses_the_room_that_a_small_cache_has() -> None:
    """Its cache holds the actual answers, but not the longest allowed ones."""
    ample, scarce = Replica("tool_sums"), Replica("tool_sums", kv_tokens=32)
    for replica in (ample, scarce):
        replica.body.perform(StartSequences(tasks=(TASK,)))
        replica.finish()
    for key, trajectory in scarce.ended.items():
        whole, content = ample.ended[key].content, trajectory.content
        assert trajectory.failure is None and not trajectory.cut and whole is not None and content is not None
        assert content.response_ids == whole.response_ids


def test_conversation_without_tokens_left_is_judged() -> None:
    replica = Replica("tool_sums", max_new_tokens=1)
    replica.body.perform(StartSequences(tasks=(TASK,)))
    replica.finish()
    for trajectory in replica.ended.values():
        assert trajectory.cut and trajectory.content is not None and "should be" in trajectory.content.remark


def test_truncated_conversation_that_moves_is_judged() -> None:
    source, host = Replica("tool_sums", max_new_tokens=1), Replica("tool_sums", number=1, max_new_tokens=1)
    source.body.perform(StartSequences(tasks=(TASK,)))
    source.answer()
    source.steps(1)
    for _ in SAMPLES:
        source.answer_one()
    assert [ask.is_truncated for ask in source.asks] == [True] * len(SAMPLES)
    source.body.perform(HandOverSequences(group=HELD, host=1, host_incarnation=0, weights=V0))
    host.take_over(source.handed[0])
    host.finish()
    assert {key.sample for key in host.ended} == set(SAMPLES)
    assert all(each.cut and each.failure is None for each in host.ended.values())


@pytest.mark.parametrize("environment", ["running_sums", "tool_sums"])
@pytest.mark.parametrize("steps", [0, 1, 2, 5])
@pytest.mark.parametrize("answers", [True, False])
def test_move_in_the_middle_changes_no_token(environment: str, steps: int, answers: bool) -> None:
    source, host = Replica(environment), Replica(environment, number=1)
    source.body.perform(StartSequences(tasks=(TASK,)))
    source.answer()
    source.steps(steps)
    if answers:
        source.answer()
    handover = HandOverSequences(group=HELD, host=1, host_incarnation=0, weights=V0)
    source.receive(source.body.perform(handover))
    [handed] = source.handed
    host.take_over(handed)
    source.finish()
    host.finish()
    assert not source.ended.keys() & host.ended.keys()
    moved = source.ended | host.ended
    for key, trajectory in unmoved(environment).items():
        content, expected = moved[key].content, trajectory.content
        assert content is not None and expected is not None
        assert content.response_ids == expected.response_ids
        assert content.logprobs == pytest.approx(expected.logprobs, abs=1e-5)
        assert moved[key].reward == trajectory.reward


@pytest.mark.parametrize("is_on_another_host", [False, True])
def test_move_carries_the_cache_and_computes_nothing_twice(
    is_on_another_host: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_on_another_host:
        monkeypatch.setattr(fetches, "own_memory", lambda: "that of another host")
    host = Replica(number=1)
    host.take_over(handed_over(steps=2))
    host.finish()
    assert not any(engine.view().num_prefilled for engine in host.engines)
    assert tokens_of(host.ended) == tokens_of(unmoved("running_sums"))


def handed_over(*, steps: int, is_gone: bool = False) -> SequencesHandedOver:
    source = Replica()
    source.body.perform(StartSequences(tasks=(TASK,)))
    source.answer()
    source.steps(steps)
    assert not source.ended
    source.body.perform(HandOverSequences(group=HELD, host=1, host_incarnation=0, weights=V0))
    if is_gone:
        source.body.measure(float("inf"))
    return source.handed[0]


def tokens_of(ended: dict[SampleKey, Trajectory]) -> dict[int, object]:
    return {key.sample: its.content and its.content.response_ids for key, its in ended.items()}


def test_samples_without_pages_are_recomputed_to_the_same_tokens() -> None:
    handed = handed_over(steps=2, is_gone=True)
    assert isinstance(handed.payload, Offered) and set(handed.payload.samples) == set(SAMPLES)
    host = Replica(number=1)
    host.take_over(handed)
    host.finish()
    assert sum(engine.view().num_prefilled for engine in host.engines) > 0
    assert tokens_of(host.ended) == tokens_of(unmoved("running_sums"))


def test_torn_pages_cost_a_prefill_and_no_sample() -> None:
    handed = handed_over(steps=2)
    assert isinstance(handed.payload, Offered)
    host = Replica(number=1)
    host.body.perform(ResumeSequences(handed=handed))
    torn = KvPages(layout=host.engines[0]._store.layout, version=0, num_tokens=3, data=b"half")
    for sample in SAMPLES:
        host.receive(host.body.on_pages(handed.payload.name, sample, torn))
    assert not host.body.is_awaiting_pages and not host.ended
    host.finish()
    assert tokens_of(host.ended) == tokens_of(unmoved("running_sums"))


def test_arriving_samples_move_on_and_late_pages_are_ignored() -> None:
    handed = handed_over(steps=2)
    second, third = Replica(number=1), Replica(number=2)
    second.body.perform(ResumeSequences(handed=handed))
    second.body.perform(HandOverSequences(group=replace(HELD, lease=2), host=2, host_incarnation=0, weights=V0))
    [again] = second.handed
    assert again.progress == handed.progress and again.payload is None
    third.take_over(again)
    third.finish()
    for _ in (*SAMPLES, "ended"):
        assert second.calls.get(timeout=WITHIN_S)(second.body) == []
    second.finish()
    assert not second.ended and tokens_of(third.ended) == tokens_of(unmoved("running_sums"))


def test_arriving_samples_take_their_reserved_places() -> None:
    host = Replica(number=1)
    host.body.perform(ResumeSequences(handed=handed_over(steps=2)))
    host.body.perform(on(V0, GroupKey(ordinal=0)))
    host.body.perform(on(V0, GroupKey(ordinal=1)))
    assert len(host.asks) == 1, "four of eight places are reserved"
    host.settle()
    host.finish()
    assert len(host.ended) == 12


def test_stopped_samples_report_progress_and_never_return() -> None:
    replica = Replica()
    replica.body.perform(StartSequences(tasks=(TASK,)))
    replica.answer()
    replica.steps(1)
    [reported] = replica.body.perform(StopSequences(groups=(HELD,), reports=True))
    assert isinstance(reported, ProgressReported) and reported.is_stopped
    stopped = {progress.key for progress in reported.progress}
    replica.finish()
    assert not stopped & replica.ended.keys()
    assert stopped | replica.ended.keys() == {SampleKey(group=GROUP, sample=sample) for sample in SAMPLES}


def test_reported_progress_suffices_to_resume_after_replica_loss() -> None:
    lost, heir = Replica(), Replica(number=1)
    lost.body.perform(StartSequences(tasks=(TASK,)))
    lost.answer()
    lost.steps(3)
    keys = [SampleKey(group=GROUP, sample=sample) for sample in SAMPLES]
    [begun] = lost.body.perform(
        ReportProgress(acknowledged=tuple(AcknowledgedProgress(key=key, sample_run=1) for key in keys))
    )
    assert isinstance(begun, ProgressReported)
    lost.steps(2)
    acknowledged = tuple(
        AcknowledgedProgress(
            key=each.key,
            sample_run=1,
            num_tokens=each.num_tokens,
            num_route_bytes=each.num_route_bytes,
            mark=each.mark,
        )
        for each in begun.progress
    )
    [grown] = lost.body.perform(ReportProgress(acknowledged=acknowledged))
    assert isinstance(grown, ProgressReported)
    assert [each.num_tokens - each.since for each in grown.progress] == [2] * len(grown.progress)
    reported = ProgressReported(progress=tuple(known_to_data(begun, grown)))
    lost.steps(2)  # these steps are never reported
    samples = tuple(progress.key.sample for progress in reported.progress)
    rest = GroupTask(key=GROUP, samples=samples, lease=2, progress=reported.progress)
    heir.body.perform(StartSequences(tasks=(rest,)))
    heir.finish()
    whole = unmoved("running_sums")
    for key, trajectory in heir.ended.items():
        content, expected = trajectory.content, whole[key].content
        assert content is not None and expected is not None
        assert content.response_ids == expected.response_ids


def known_to_data(begun: ProgressReported, grown: ProgressReported) -> Iterator[SampleProgress]:
    by_key = {each.key: each for each in begun.progress}
    for each in grown.progress:
        account = Account(by_key[each.key], reporter=(0, 0))
        account.take(each)
        yield account.progress(each.key)


# ── several versions on one replica ───────────────────────────────────────────────────────────────────────────────────

OTHER = GroupKey(ordinal=6)


def on(weights: WeightsId, key: GroupKey) -> StartSequences:
    return StartSequences(tasks=(GroupTask(key=key, samples=SAMPLES, lease=1, exact=weights),))


def alone(version: int, key: GroupKey, environment: str) -> dict[SampleKey, Trajectory]:
    """The samples of a replica that never held another version."""
    replica = Replica(environment, weight_slots=1)
    replica.install(version, in_flight="drain")
    replica.body.perform(on(WeightsId(0, version), key))
    replica.finish()
    return replica.ended


@pytest.mark.parametrize("environment", ["running_sums", "tool_sums"])
def test_two_versions_decode_in_parallel_as_they_do_alone(environment: str) -> None:
    replica = Replica(environment)
    replica.body.perform(on(V0, GROUP))
    replica.answer()
    replica.steps(2)
    assert isinstance(replica.install(1, keeps=(V0,)), WeightsInstalled)
    replica.body.perform(on(V1, OTHER))
    assert not replica.ended, "both groups are in progress"
    replica.finish()
    assert all(engine.view().num_decoded > 2 for engine in replica.engines)
    expected = alone(0, GROUP, environment) | alone(1, OTHER, environment)
    assert replica.ended.keys() == expected.keys()
    for key, trajectory in replica.ended.items():
        assert trajectory.weights == expected[key].weights and not trajectory.runs
        content, other = trajectory.content, expected[key].content
        assert content is not None and other is not None
        assert content.response_ids == other.response_ids
        assert content.logprobs == pytest.approx(other.logprobs, abs=1e-5)
    differing = alone(0, OTHER, environment)
    assert any(differing[key].content != replica.ended[key].content for key in differing), (
        "the versions compute the same"
    )


@pytest.mark.parametrize(("in_flight", "reads_again"), [("keep", False), ("reprefill", True)])
def test_in_flight_install_keeps_cache_or_reprefills(in_flight: InFlight, reads_again: bool) -> None:
    replica = Replica(weight_slots=1)
    replica.body.perform(on(V0, GROUP))
    replica.answer()
    replica.steps(2)
    [engine] = replica.engines
    before = engine.view()
    assert before.num_running == len(SAMPLES) and not replica.ended
    assert isinstance(replica.install(1, in_flight=in_flight), WeightsInstalled)
    replica.steps(1)
    assert (engine.view().num_prefilled > before.num_prefilled) == reads_again
    replica.finish()
    assert len(replica.ended) == len(SAMPLES)
    for trajectory in replica.ended.values():
        assert [run.weights for run in trajectory.runs] == [V0, V1]
        assert trajectory.weights == V0, "a trajectory is as old as its oldest token"


@pytest.mark.parametrize("environment", ["running_sums", "tool_sums"])
def test_install_over_one_version_leaves_the_other_unchanged(environment: str) -> None:
    """Samples of the replaced version keep their caches, decoding or with their tools; the others are as if alone."""
    replica = Replica(environment)
    replica.body.perform(on(V0, GROUP))
    replica.answer()
    replica.steps(2)
    replica.install(1, keeps=(V0,))
    replica.body.perform(on(V1, OTHER))
    replica.answer()
    replica.steps(2)
    first = replica.engines[0].view()
    assert isinstance(replica.install(2, keeps=(V1,), over=V0, in_flight="keep"), WeightsInstalled)
    replica.steps(1)
    assert replica.engines[0].view().num_prefilled == first.num_prefilled, "no token is read again"
    replica.finish()
    own = alone(1, OTHER, environment)
    for key, trajectory in replica.ended.items():
        if key.group == GROUP:
            assert [run.weights for run in trajectory.runs] == [V0, V2] and trajectory.weights == V0
        else:
            assert not trajectory.runs
            content, other = trajectory.content, own[key].content
            assert content is not None and other is not None
            assert content.response_ids == other.response_ids
            assert content.logprobs == pytest.approx(other.logprobs, abs=1e-5)  # rounding depends on the batch
    assert len(replica.ended) == 2 * len(SAMPLES) and len(replica.engines) == 2


def test_idle_slot_takes_next_version_without_a_third_engine() -> None:
    replica = Replica()
    replica.body.perform(on(V0, GROUP))
    replica.install(1, keeps=(V0,))
    replica.finish()
    replica.install(2, keeps=(V1,))
    assert len(replica.engines) == 2 and {engine.view().version for engine in replica.engines} == {1, 2}
    replica.body.perform(on(V1, OTHER))
    replica.body.perform(on(V2, GroupKey(ordinal=7)))
    replica.finish()
    assert {trajectory.weights.version for key, trajectory in replica.ended.items() if key.group == OTHER} == {1}


def test_older_held_version_keeps_its_weights_after_a_move() -> None:
    source, host = Replica(), Replica(number=1)
    source.body.perform(on(V0, GROUP))
    source.answer()
    source.steps(3)
    host.install(1, keeps=(V0,))
    source.receive(source.body.perform(HandOverSequences(group=HELD, host=1, host_incarnation=0, weights=V0)))
    host.take_over(source.handed[0])
    host.finish()
    assert {trajectory.weights for trajectory in host.ended.values()} == {V0}
    assert sum(engine.view().num_prefilled for engine in host.engines) == 0, "its cache fits the slot on the host"


def test_load_report_covers_all_versions_of_a_replica() -> None:
    replica = Replica(weight_slots=2)
    replica.body.perform(on(V0, GROUP))
    replica.install(1, keeps=(V0,))
    replica.body.perform(on(V1, OTHER))
    replica.answer()
    replica.steps(1)
    [load] = replica.body.measure(1e9)
    assert isinstance(load, LoadMeasured)
    assert {weights for weights, _ in load.kv_by_weights} == {V0, V1}
    assert load.kv_used == pytest.approx(sum(kv_used for _, kv_used in load.kv_by_weights)) and load.kv_used > 0
    [observed] = replica.observed
    assert (observed.version, observed.num_decoded, load.num_tokens) == (1, 8, 8)
    # Each of its engines has installed a version and run a step.
    assert (observed.num_steps, observed.num_installs) == (2, 2)
    assert observed.decode_s > 0 and observed.install_s > 0


def test_samples_beyond_the_batch_wait_for_places() -> None:
    replica = Replica("tool_sums")
    keys = [GroupKey(ordinal=ordinal) for ordinal in range(3)]
    for key in keys:
        replica.body.perform(on(V0, key))
    most = 0
    for _ in range(1_000):
        replica.answer()
        if not replica.body.is_busy and not replica.asks:
            break
        replica.receive(replica.body.work())
        most = max(most, sum(engine.view().num_running for engine in replica.engines) + len(replica.asks))
    assert most == 8 and len(replica.ended) == 12


def test_queued_sample_can_be_handed_over_and_stopped() -> None:
    replica = Replica()
    replica.body.perform(on(V0, GroupKey(ordinal=0)))
    replica.body.perform(on(V0, GroupKey(ordinal=1)))
    replica.body.perform(on(V0, GROUP))
    [reported] = replica.body.perform(StopSequences(groups=(HELD,), reports=True))
    assert isinstance(reported, ProgressReported)
    assert {progress.key for progress in reported.progress} == {SampleKey(group=GROUP, sample=at) for at in SAMPLES}
    replica.finish()
    assert {key.group for key in replica.ended} == {GroupKey(ordinal=0), GroupKey(ordinal=1)}
