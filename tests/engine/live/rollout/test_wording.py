"""Turns by chat template: the model reads exactly the template's text, and training sees exactly the sampled tokens."""

from collections import deque
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from tokenizers import Tokenizer as RawTokenizer

from engine.environments.port import Message, Observation, Prompt, Role, Split, Turn, Verdict
from engine.inference.torch_engine import TorchRolloutEngine
from engine.live.environment.turns import Answer, Ask
from engine.live.rollout.open_turns import OpenTurns
from engine.live.rollout.samples import Samples
from engine.live.rollout.text_work import InlineTexts
from engine.live.rollout.weight_slots import WeightSlots
from engine.live.rollout.wording import Wording
from engine.live.texts.model_texts import BoundedTokenizer
from engine.live.trainer.batch import batch_of
from engine.models.loading import DEMO_FOLDER
from engine.models.tokenizer import Tokenizer
from engine.pipeline.messages.addresses import rollout_address
from engine.pipeline.records import CompleteGroup, GroupKey, GroupTask, Trajectory, TrajectoryContent
from engine.policy.lineage import Lineage, WeightsId
from engine.spec.job import JobSpec, ModelSpec
from engine.training.step.micro_batch import batch_step
from engine.weights.snapshot import pack_weights
from tests.engine.chat_rules import END, save_qwen3

pytestmark = pytest.mark.usefixtures("one_thread")

V0 = WeightsId(0, 0)
GROUP = GroupKey(ordinal=5)
NUM_SAMPLES = 4
THOUGHT = "<think>\nI need the product.\n</think>\n\n"
CALL = f'{THOUGHT}<tool_call>\n{{"name": "calculator", "arguments": {{"expression": "6*7"}}}}\n</tool_call>'
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "calculator", "parameters": {}}}


@pytest.fixture(scope="session")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_qwen3(tmp_path_factory.mktemp("qwen3"))


def prompt(text: str = "What is 6 times 7?\n", **more: Any) -> Prompt:
    return Prompt(split="train", ordinal=5, text=text, facts={}, **more)


def read_by_transformers(folder: Path, messages: Sequence[Message], *, opened: bool = True, **given: Any) -> list[int]:
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    ids: list[int] = tokenizer.apply_chat_template(
        list(messages), add_generation_prompt=opened, return_dict=False, **given
    )
    return ids


class Talk:
    """A conversation whose turns are written by the test, token by token."""

    def __init__(self, folder: Path, opening: Prompt, **model: Any) -> None:
        self.wording = Wording.of_model(folder, ModelSpec(source=str(folder), **model))
        self.tokenizer = Tokenizer.from_folder(folder)
        self.prompt = opening
        opened = self.wording.render_prompt(opening)
        self.ids, self.segment_text = list(opened.ids), opened.text
        self.sampled: list[tuple[int, ...]] = []
        self.turns: list[Turn] = []
        self.observed: list[Observation] = []
        self.rewrites: list[bool] = []

    def say(self, ids: Sequence[int]) -> None:
        decoded = self.wording.decode(ids)
        self.ids += ids
        self.sampled.append(tuple(ids))
        self.segment_text += decoded.exact_text
        self.turns.append(decoded.turn)

    def observe(self, text: str, role: Role) -> None:
        self.observed.append(Observation(text=text, role=role))
        rendered = self.wording.render_observation(self.prompt, self.segment_text, self.turns, self.observed)
        self.rewrites.append(rendered.starts_segment)
        if rendered.starts_segment:
            self.ids, self.segment_text = [], ""
        self.ids += rendered.ids
        self.segment_text += rendered.text


def test_tool_answer_and_next_opening_match_the_template(qwen3: Path) -> None:
    talk = Talk(qwen3, prompt(tools=(TOOL,)))
    messages: list[Message] = [{"role": "user", "content": "What is 6 times 7?"}]
    assert talk.ids == read_by_transformers(qwen3, messages, tools=[TOOL])
    for number in range(3):
        talk.say(talk.tokenizer.encode(CALL + END, goes_on=True))
        talk.observe(f"\n4{number}\n", "tool")
        messages += [{"role": "assistant", "content": CALL}, {"role": "tool", "content": f"4{number}"}]
        assert talk.ids == read_by_transformers(qwen3, messages, tools=[TOOL])
    assert talk.rewrites == [False] * 3
    marks = talk.tokenizer.words()
    assert talk.ids.count(marks["<tool_response>"]) == talk.ids.count(marks["</tool_response>"]) == 3


def test_sampled_tokens_are_kept_where_retokenizing_differs(qwen3: Path) -> None:
    talk = Talk(qwen3, prompt())
    in_bytes = [token for letter in "calculator" for token in talk.tokenizer.encode(letter, goes_on=True)]
    assert in_bytes != talk.tokenizer.encode("calculator", goes_on=True)
    sampled = [*talk.tokenizer.encode(THOUGHT, goes_on=True), *in_bytes, talk.tokenizer.eos_id]
    before = len(talk.ids)
    talk.say(sampled)
    talk.observe("42", "tool")
    assert talk.rewrites == [False]
    assert talk.ids[before : before + len(sampled)] == sampled
    assert talk.tokenizer.decode(talk.ids[before + len(sampled) :]).startswith("\n<|im_start|>user\n<tool_response>")


def test_each_observation_is_tokenized_alone(qwen3: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenized: list[str] = []
    encode = BoundedTokenizer.encode

    def note(self: BoundedTokenizer, text: str, *, goes_on: bool = False) -> list[int]:
        tokenized.append(text)
        return encode(self, text, goes_on=goes_on)

    talk = Talk(qwen3, prompt("What is 6 times 7? " * 50))
    ids = talk.tokenizer.encode("it is " + END, goes_on=True)
    monkeypatch.setattr(BoundedTokenizer, "encode", note)
    for number in range(3):
        talk.say(ids)
        talk.observe(f"no, not {number}", "tool")
    assert len(tokenized) == 3 and not any("What is" in text or "it is" in text for text in tokenized)


def test_half_a_letter_that_was_sampled_is_kept(qwen3: Path) -> None:
    """Invalid bytes decode to a replacement character on both sides."""
    talk = Talk(qwen3, prompt())
    half = talk.tokenizer.encode("é", goes_on=True)[:1]
    before = len(talk.ids)
    talk.say([*talk.tokenizer.encode(THOUGHT, goes_on=True), *half, talk.tokenizer.eos_id])
    talk.observe("42", "tool")
    assert talk.rewrites == [False] and half[0] in talk.ids[before:]


def test_template_closes_a_turn_ended_by_a_stop_string(qwen3: Path) -> None:
    talk = Talk(qwen3, prompt())
    talk.say(talk.tokenizer.encode(CALL, goes_on=True))
    talk.observe("42", "tool")
    question = {"role": "user", "content": "What is 6 times 7?"}
    dialogue = [question, {"role": "assistant", "content": CALL}, {"role": "tool", "content": "42"}]
    assert talk.rewrites == [False]
    assert talk.ids == read_by_transformers(qwen3, dialogue)


def test_template_that_drops_thoughts_starts_a_new_segment(qwen3: Path) -> None:
    talk = Talk(qwen3, prompt())
    talk.say(talk.tokenizer.encode(f"{THOUGHT}42{END}", goes_on=True))
    talk.observe("Are you sure?", "user")
    talk.say(talk.tokenizer.encode(CALL + END, goes_on=True))
    talk.observe("42", "tool")
    assert talk.rewrites == [True, False]
    dialogue = [
        {"role": "user", "content": "What is 6 times 7?"},
        {"role": "assistant", "content": f"{THOUGHT}42"},
        {"role": "user", "content": "Are you sure?"},
        {"role": "assistant", "content": CALL},
        {"role": "tool", "content": "42"},
    ]
    assert talk.ids == read_by_transformers(qwen3, dialogue)
    assert talk.tokenizer.decode(talk.ids).count("I need the product") == 1


def test_generated_history_equals_template_if_nothing_is_dropped(qwen3: Path) -> None:
    talk = Talk(qwen3, prompt(tools=(TOOL,)), history="as_generated")
    messages: list[Message] = [{"role": "user", "content": "What is 6 times 7?"}]
    for number, end in enumerate((END, "", END)):  # one turn is ended by a stop string
        talk.say(talk.tokenizer.encode(CALL + end, goes_on=True))
        talk.observe(f"\n4{number}\n", "tool")
        messages += [{"role": "assistant", "content": CALL}, {"role": "tool", "content": f"4{number}"}]
        assert talk.ids == read_by_transformers(qwen3, messages, tools=[TOOL])


@pytest.mark.parametrize("thinks", [True, False])
def test_generated_history_keeps_thoughts_in_one_segment(qwen3: Path, thinks: bool) -> None:
    talk = Talk(qwen3, prompt(), history="as_generated", chat_options={"enable_thinking": thinks})
    opened, answer = list(talk.ids), f"{THOUGHT if thinks else ''}42"
    for number in range(3):
        talk.say(talk.tokenizer.encode(answer + END, goes_on=True))
        talk.observe(f"Are you sure? STAND-IN {number}", "user")
    assert talk.rewrites == [False] * 3
    text = talk.tokenizer.decode(talk.ids[len(opened) :])
    opening = talk.segment_text[talk.segment_text.rindex("<|im_start|>assistant") :]
    questions = [f"\n<|im_start|>user\nAre you sure? STAND-IN {number}" for number in range(3)]
    assert text == "".join(f"{answer}{question}\n{opening}" for question in questions)


def test_template_that_hides_answers_refuses_generated_history(tmp_path: Path) -> None:
    folder = save_qwen3(tmp_path, template=None)
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")
    talk = Talk(folder, prompt(), history="as_generated")
    talk.say(talk.tokenizer.encode(f"42{END}", goes_on=True))
    with pytest.raises(ValueError, match=r"leave model\.history at template"):
        talk.observe("Are you sure?", "user")


def test_options_reach_the_template(qwen3: Path) -> None:
    talk = Talk(qwen3, prompt(), chat_options={"enable_thinking": False})
    expected = read_by_transformers(qwen3, [{"role": "user", "content": "What is 6 times 7?"}], enable_thinking=False)
    assert talk.ids == expected
    assert talk.segment_text.endswith("<think>\n\n</think>\n\n")


def test_messages_are_rendered_unchanged(qwen3: Path) -> None:
    messages = ({"role": "system", "content": "Be short."}, {"role": "user", "content": " 6 times 7? "})
    assert Talk(qwen3, prompt(messages=messages)).ids == read_by_transformers(qwen3, messages)


def test_plain_chat_reads_prompts_without_a_template(qwen3: Path) -> None:
    talk = Talk(qwen3, prompt(), chat="plain")
    assert talk.ids == talk.tokenizer.encode("What is 6 times 7?\n")
    talk.say(talk.tokenizer.encode("42"))
    talk.observe(" <result>\n", "tool")
    assert talk.ids[-len(talk.tokenizer.encode(" <result>\n")) :] == talk.tokenizer.encode(" <result>\n")


def test_plain_model_reads_texts_and_refuses_messages() -> None:
    plain = Wording.of_model(DEMO_FOLDER, ModelSpec())
    assert plain.render_prompt(prompt("3 + 8 =")).ids == tuple(Tokenizer.from_folder(DEMO_FOLDER).encode("3 + 8 ="))
    with pytest.raises(ValueError, match="needs a model with a chat template"):
        plain.render_prompt(prompt(messages=({"role": "user", "content": "3 + 8 ="},)))
    for model in ({"chat": "template"}, {"chat_options": {"enable_thinking": True}}):
        with pytest.raises(ValueError, match=r"^model\.chat: demo has no chat template"):
            Wording.of_model(DEMO_FOLDER, ModelSpec.model_validate(model))


# With an engine that samples ------------------------------------------------------------------------------------------


class Answering:
    """Answers turn after turn in the given roles, then judges."""

    def __init__(self, *roles: Role) -> None:
        self._roles = roles

    def prompt(self, split: Split, ordinal: int) -> Prompt:
        return Prompt(split=split, ordinal=ordinal, text="question", facts={}, tools=(TOOL,))

    def respond(self, prompt: Prompt, turns: Sequence[Turn]) -> Observation | Verdict:
        if len(turns) <= len(self._roles):
            return Observation(text=f"answer {len(turns)}", role=self._roles[len(turns) - 1])
        return Verdict(reward=float(prompt.facts["sample"]), parts={}, trusted=True, remark="")


class Talking:
    """The samples of one replica, with every token that its engine sampled."""

    def __init__(self, folder: Path, environment: Answering, options: dict[str, bool]) -> None:
        document = {"name": "talk", "rollout": {"max_new_tokens": 400, "stop": ["e", "a"]}}
        slots = WeightSlots(lambda: TorchRolloutEngine(folder, max_batch=8, device="cpu"), num_slots=1)
        slots.newest.install(pack_weights(load_file(folder / "model.safetensors"), weights=V0), V0)
        self.asks: deque[Ask] = deque()
        self.environment = environment
        open_turns = OpenTurns(by=rollout_address(0), ask=self.asks.extend, timeout_s=60.0)
        wording = Wording.of_model(folder, ModelSpec.model_validate({"source": str(folder), "chat_options": options}))
        self.samples = Samples(
            spec=JobSpec.model_validate(document),
            slots=slots,
            wording=wording,
            text_work=InlineTexts(),
            open_turns=open_turns,
        )
        self.open_turns = open_turns
        self.sampled: dict[int, list[int]] = {sample: [] for sample in range(NUM_SAMPLES)}
        step = slots.newest.engine.step

        def noted() -> Any:
            outputs = step()
            for output in outputs:
                self.sampled[int(output.sequence_id.split("/")[2])] += output.token_ids
            return outputs

        slots.newest.engine.step = noted  # type: ignore[method-assign]

    def finish(self) -> list[Trajectory]:
        self.samples.start([GroupTask(key=GROUP, samples=tuple(range(NUM_SAMPLES)), lease=1)])
        ended: list[Trajectory] = []
        while len(ended) < NUM_SAMPLES:
            self.open_turns.send(at_once=True)
            while self.asks:
                ask = self.asks.popleft()
                prompt = ask.prompt
                reply = self.environment.respond(prompt, ask.turns) if prompt else self.environment.prompt("train", 5)
                self.samples.on_answers([Answer(id=ask.id, result=reply)])
            self.samples.decode()
            ended += self.samples.hand_in()
        return sorted(ended, key=lambda each: each.key.sample)


def segments_of(content: TrajectoryContent) -> list[tuple[list[int], list[bool]]]:
    """(tokens, whether each was sampled) of each segment."""
    ends = [*content.breaks, len(content.response_ids)]
    parts = []
    for start, end in zip([0, *ends], ends, strict=False):
        before = [] if start else list(content.prompt_ids)
        ids = before + list(content.response_ids[start:end])
        parts.append((ids, [False] * len(before) + list(content.written[start:end])))
    return parts


def runs_of(ids: Sequence[int], sampled: Sequence[bool]) -> list[tuple[bool, list[int]]]:
    return [
        (is_own, [token for token, _ in run])
        for is_own, run in groupby(zip(ids, sampled, strict=True), key=lambda each: each[1])
    ]


def transformers_text(folder: Path, turns: Sequence[str], roles: Sequence[Role], options: dict[str, bool]) -> str:
    """The conversation after its answered turns."""
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    messages = [{"role": "user", "content": "question"}]
    for number, (turn, role) in enumerate(zip(turns, roles, strict=False), start=1):
        messages += [{"role": "assistant", "content": turn}, {"role": role, "content": f"answer {number}"}]
    given = {"tools": [TOOL], "tokenize": False, "add_generation_prompt": True, **options}
    text: str = tokenizer.apply_chat_template(messages, **given)
    return text


@pytest.mark.parametrize("roles", [("tool", "tool"), ("tool", "user", "tool")])
@pytest.mark.parametrize("thinks", [True, False])
def test_trained_tokens_are_the_sampled_ones_after_template_text(
    qwen3: Path, roles: tuple[Role, ...], thinks: bool
) -> None:
    """A random model writes anything, thoughts and half letters too; a stop string or its end token ends a turn. With
    thinking off, Qwen3's template opens a turn with an empty thought, and drops that from the turn later on."""
    options = {"enable_thinking": thinks}
    talking = Talking(qwen3, Answering(*roles), options)
    ended = talking.finish()
    raw, tokenizer = RawTokenizer.from_file(str(qwen3 / "tokenizer.json")), Tokenizer.from_folder(qwen3)
    for trajectory in ended:
        content, turns = trajectory.content, list[str]()
        assert content is not None and trajectory.failure is None and not trajectory.cut
        own = [token for token, mine in zip(content.response_ids, content.written, strict=True) if mine]
        assert own == talking.sampled[trajectory.key.sample]
        for ids, sampled in segments_of(content):
            text = ""
            for is_own, run in runs_of(ids, sampled):
                if is_own:
                    assert text == transformers_text(qwen3, turns, roles, options)
                    turns.append(tokenizer.decode(run))
                text += raw.decode(run, skip_special_tokens=False)
        assert len(turns) == len(roles) + 1
        assert thinks or trajectory.num_segments == len(turns)
    batch = batch_of([CompleteGroup(key=GROUP, trajectories=tuple(ended))], Lineage(), at=0)
    trained: dict[int, int] = {}
    read: list[list[int]] = []
    for micro_batch in batch_step(batch, max_tokens=300, device="cpu").micro_batches:
        trained |= dict(zip(micro_batch.slots_N.tolist(), micro_batch.targets_N.tolist(), strict=True))
        read += [micro_batch.ids[places].tolist() for places in micro_batch.tokens.places.values()]
    segments = [ids for each in ended if each.content is not None for ids, _ in segments_of(each.content)]
    assert sorted(read) == sorted(ids[:-1] for ids in segments)
    assert [trained[slot] for slot in sorted(trained)] == [token for each in talking.sampled.values() for token in each]
