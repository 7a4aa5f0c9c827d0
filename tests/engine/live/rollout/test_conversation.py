"""A trajectory of several turns: the author of each token, and how many tokens are left."""

from dataclasses import replace

from engine.environments.port import Observation, Prompt, Turn, Verdict
from engine.inference.port import SamplingParams, SequenceOutput, SequenceProgress
from engine.live.environment.turns import Answer
from engine.live.rollout.conversation import HISTORY_REWRITTEN, Conversation, sampling_of
from engine.live.rollout.progress_codec import full_progress, unpack_progress
from engine.live.rollout.wording import DecodedTurn, Rendered
from engine.pipeline.records import Failure, GroupKey, SampleKey, VersionRun
from engine.policy.lineage import WeightsId
from engine.spec.job import JobSpec

VERDICT = Verdict(reward=0.5, parts={}, trusted=True, remark="half")


def named(version: int) -> WeightsId:
    return WeightsId(1, version)


def conversation(max_new_tokens: int = 10) -> Conversation:
    return Conversation(
        weights=WeightsId(1, 4),
        key=SampleKey(group=GroupKey(ordinal=3), sample=1),
        prompt=Prompt(split="train", ordinal=3, text="ask", facts={}),
        prompt_ids=(1, 2),
        sampling=SamplingParams(max_new_tokens=max_new_tokens, temperature=1.0, seed=5),
    )


def output(*ids: int, version: int = 4, reason: str = "stop") -> SequenceOutput:
    return SequenceOutput(
        sequence_id="x",
        token_ids=ids,
        logprobs=tuple(-float(each) for each in ids),
        versions=(version,) * len(ids),
        reason=reason,  # type: ignore[arg-type]
    )


def decoded(text: str) -> DecodedTurn:
    return DecodedTurn(turn=Turn(text=text), exact_text=text)


def observe(talk: Conversation, ids: list[int], text: str, *, starts_segment: bool = False) -> None:
    talk.observed.append(Observation(text=text))
    talk.observe(Rendered(ids=tuple(ids), text=text, starts_segment=starts_segment))


def test_later_turn_reads_all_before_and_has_the_rest_of_tokens() -> None:
    talk = conversation()
    talk.add_turn(output(3, 4), decoded("one"), named)
    observe(talk, [8, 8, 8], "seen")
    request = talk.request()
    assert request.prompt_ids == (1, 2, 3, 4, 8, 8, 8)
    assert request.sampling.max_new_tokens == 8
    assert request.sequence_id != conversation().request().sequence_id


def test_token_keeps_the_route_of_its_first_read() -> None:
    """One byte a token: the second turn reads all tokens again, perhaps on newer weights. Nothing reads its last."""
    talk = conversation()
    talk.add_turn(replace(output(3, 4), routes=b"abc"), decoded("one"), named)
    observe(talk, [8], "seen")
    talk.add_turn(replace(output(5), routes=b"ABCDE"), decoded("two"), named)
    content = talk.judged(VERDICT).content
    assert content is not None
    assert content.routes.data == b"abcDE"


def test_environment_tokens_are_marked_and_carry_no_logprob() -> None:
    talk = conversation()
    talk.add_turn(output(3, 4), decoded("one"), named)
    observe(talk, [8], "seen")
    talk.add_turn(output(5), decoded("two"), named)
    trajectory = talk.judged(VERDICT)
    content = trajectory.content
    assert content is not None
    assert tuple(content.response_ids) == (3, 4, 8, 5)
    assert tuple(content.written) == (True, True, False, True)
    assert tuple(content.logprobs) == (-3.0, -4.0, 0.0, -5.0)
    assert content.response_text == "oneseentwo"


def test_trajectory_of_one_version_has_no_version_runs() -> None:
    talk = conversation()
    talk.add_turn(output(3, 4), decoded("one"), named)
    trajectory = talk.judged(VERDICT)
    assert trajectory.weights == named(4)
    assert trajectory.runs == ()


def test_trajectory_of_two_versions_names_oldest_and_runs() -> None:
    talk = conversation()
    talk.add_turn(output(3, version=7), decoded("one"), named)
    talk.add_turn(output(4, version=8), decoded("two"), named)
    trajectory = talk.judged(VERDICT)
    assert trajectory.weights == named(7)
    assert trajectory.runs == (
        VersionRun(weights=named(7), num_tokens=1),
        VersionRun(weights=named(8), num_tokens=1),
    )


def test_observations_do_not_count_towards_max_new_tokens() -> None:
    talk = conversation(max_new_tokens=2)
    talk.add_turn(output(3), decoded("one"), named)
    observe(talk, [8] * 50, "seen")
    may_go_on = [talk.may_go_on]
    talk.add_turn(output(4, reason="length"), decoded("two"), named)
    assert [*may_go_on, talk.may_go_on] == [True, False]
    assert talk.judged(VERDICT).cut


def test_moved_conversation_is_a_copy_with_its_partial_turn() -> None:
    talk = conversation()
    talk.add_turn(output(3, version=7), decoded("one"), named)
    observe(talk, [8, 8], "seen")
    partial = SequenceProgress(token_ids=(5,), logprobs=(-5.0,), versions=(8,))
    moved = full_progress(talk, partial, named)
    observe(talk, [9], "later")
    assert moved.num_tokens == 4 and len(moved.packed_tokens) == 4 * 8
    assert [run.num_tokens for run in moved.runs] == [3, 1]
    resumed = unpack_progress(moved)
    assert resumed is not None and resumed.response_ids == [3, 8, 8]
    request = resumed.request()
    assert request.progress == partial
    assert request.prompt_ids == (1, 2, 3, 8, 8)


def test_only_a_conversation_after_a_turn_awaits_an_answer() -> None:
    talk = conversation()
    talk.add_turn(output(3), decoded("one"), named)
    waits = [talk.awaits_answer]
    observe(talk, [8], "seen")
    assert [*waits, talk.awaits_answer] == [True, False]


def test_held_out_answer_is_sent_without_its_content() -> None:
    """Data keeps an evaluation's answers until the evaluation ends: 65,536 of 32k tokens would be 25 GB."""
    talk = replace(conversation(), key=SampleKey(group=GroupKey(ordinal=3, evaluation=4), sample=1))
    talk.add_turn(output(3), decoded("one"), named)
    answer = talk.judged(VERDICT)
    assert (answer.content, answer.reward, answer.num_tokens) == (None, 0.5, 1)


def test_untrusted_reward_stays_untrusted() -> None:
    talk = conversation()
    talk.add_turn(output(3), decoded("one"), named)
    assert talk.judged(VERDICT).trusted
    doubtful = talk.judged(replace(VERDICT, trusted=False))
    assert (doubtful.trusted, doubtful.reward, doubtful.failure) == (False, 0.5, None)


def test_new_segment_rereads_history_and_keeps_each_sample_once() -> None:
    talk = conversation()
    talk.add_turn(replace(output(3, 4), routes=b"abc"), decoded("one"), named)
    observe(talk, [1, 7, 8, 9], "seen", starts_segment=True)
    request = talk.request()
    assert request.prompt_ids == (1, 7, 8, 9)
    assert request.sampling.max_new_tokens == 8
    talk.add_turn(replace(output(5, 6), routes=b"ABCDE"), decoded("two"), named)
    observe(talk, [8], "seen")
    assert talk.request().prompt_ids == (1, 7, 8, 9, 5, 6, 8)
    moved = unpack_progress(full_progress(talk, None, named))
    assert moved is not None and moved.request() == talk.request() and moved.breaks == talk.breaks
    talk.add_turn(output(2), decoded("three"), named)
    trajectory = talk.judged(VERDICT)
    content = trajectory.content
    assert content is not None and trajectory.num_segments == 2
    assert tuple(content.breaks) == (2,)
    assert [token for token, is_own in zip(content.response_ids, content.written, strict=True) if is_own] == [
        3,
        4,
        5,
        6,
        2,
    ]
    assert content.routes.data == b"abc", "routes cover the first segment only"
    assert content.response_text == f"one{HISTORY_REWRITTEN}seentwoseenthree"


def test_utterances_carry_author_tool_duration_and_error() -> None:
    talk = conversation()
    talk.add_turn(output(3, 4), decoded("I ask. <tool>add 1 2</tool>"), named)
    talk.observed.append(Observation(text="3", role="tool", tool="add", arguments="1 2", error="it is slow"))
    talk.observe(Rendered(ids=(8, 9, 8), text="<tool_response>\n3\n</tool_response>"), seconds=0.25)
    moved = unpack_progress(full_progress(talk, None, named))
    assert moved is not None
    moved.add_turn(output(5), decoded("It is 3."), named)
    content = moved.judged(replace(VERDICT, parts={"right": 1.0})).content
    assert content is not None and content.parts == (("right", 1.0),)
    call, answered, last = content.utterances
    texts = [content.response_text[each.start : each.start + each.num_letters] for each in content.utterances]
    assert texts == ["I ask. <tool>add 1 2</tool>", "3", "It is 3."]
    assert [each.is_own for each in content.utterances] == [True, False, True]
    assert [(each.first_token, each.num_tokens) for each in content.utterances] == [(0, 2), (2, 3), (5, 1)]
    assert (call.tool, call.arguments, call.error) == ("add", "1 2", "")
    assert (answered.tool, answered.seconds, answered.error) == ("add", 0.25, "it is slow")
    assert (last.tool, last.seconds) == ("", None)


def test_single_message_of_the_model_has_no_utterances() -> None:
    talk = conversation()
    talk.add_turn(output(3, 4), decoded("one"), named)
    content = talk.judged(VERDICT).content
    assert content is not None and content.utterances == ()


def test_waits_for_the_environment_add_up() -> None:
    talk = conversation()
    talk.add_turn(output(3, 4), decoded("one"), named)
    for seconds, waited_s, num_before in ((3.0, 1.0, 7), (2.0, 0.5, 4)):
        seen = Observation(text="continue")
        answer = Answer(id=(talk.key, 1, ""), result=seen, seconds=seconds, waited_s=waited_s, num_before=num_before)
        talk.note_answer(answer)
    ended = talk.judged(VERDICT)
    assert (ended.environment_s, ended.queue_s, ended.queue_depth) == (5.0, 1.5, 7)


def test_failure_of_the_environment_is_the_last_utterance() -> None:
    talk = conversation()
    talk.add_turn(output(3, 4), decoded("one"), named)
    late = Failure(kind="timeout", reason="no answer within 5 s")
    content = talk.failed(late, seconds=5.0).content
    assert content is not None
    (_, last) = content.utterances
    assert (last.is_own, last.num_tokens, last.error, last.seconds) == (False, 0, late.reason, 5.0)


def sampled(evaluation: dict[str, float], *, version: int | None) -> tuple[float, float, int, float]:
    """Temperature, top_p, top_k, min_p; `version`: None for a training prompt."""
    rollout = {"temperature": 0.8, "top_p": 0.9, "top_k": 7, "min_p": 0.01}
    spec = JobSpec.model_validate({"name": "x", "rollout": rollout, "evaluation": evaluation})
    sampling = sampling_of(SampleKey(group=GroupKey(ordinal=0, evaluation=version), sample=0), spec)
    return sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p


def test_evaluation_answers_use_their_own_sampling_settings() -> None:
    own = {"temperature": 0.6, "top_p": 0.95, "top_k": 0, "min_p": 0.0}
    assert sampled(own, version=0) == (0.6, 0.95, 0, 0.0)
    assert sampled(own, version=None) == (0.8, 0.9, 7, 0.01), "training keeps the rollouts' settings"


def test_empty_evaluation_settings_are_the_rollouts() -> None:
    assert sampled({}, version=3) == (0.8, 0.9, 7, 0.01)
    assert sampled({"temperature": 0}, version=3) == (0.0, 0.9, 7, 0.01)


def test_samples_of_an_evaluation_prompt_have_distinct_seeds() -> None:
    spec = JobSpec(name="x")
    keys = [SampleKey(group=GroupKey(ordinal=0, evaluation=0), sample=sample) for sample in range(4)]
    assert len({sampling_of(key, spec).seed for key in keys}) == 4
