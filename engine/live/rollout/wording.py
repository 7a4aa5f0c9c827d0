"""What the model is given to read, as tokens: a prompt, and what its environment says to a turn.

    by the template   the conversation is rendered with the answer as it was said and what comes after it; the part
                      behind what was said so far is added
    as it stands      a text is its own tokens: for a model without a template, and for a job that wants none

Invariants:
- tokens that were sampled are never made anew out of text as long as the template tells them as they were said: the
  rendered text then begins, letter by letter, with all that was said so far;
- where it does not (templates that drop earlier thoughts, or white space), a new segment begins, which reads the whole
  conversation as the template now tells it. What was sampled before stays with the segment that it was sampled in;
- with `model.history` as_generated no segment begins anew: the template renders a stand-in for the last answer, and
  only the text behind the stand-in is added.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from engine.environments.port import Message, Observation, Prompt, Role, Tool, Turn
from engine.models.chat import ChatTemplate
from engine.models.tokenizer import Tokenizer
from engine.spec.job import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Worded:
    ids: tuple[int, ...]
    text: str
    begins_anew: bool = False
    """It tells everything that was said before once more, in its own way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    turn: Turn
    exactly: str
    """With the token that ended it."""


class Wording:
    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate | None, *, keeps_history: bool = False) -> None:
        self._tokenizer, self._template, self._keeps_history = tokenizer, template, keeps_history

    @classmethod
    def of_model(cls, folder: Path, asked: ModelSpec) -> Self:
        """Raises `ValueError` of a template that is asked for and not there, or cannot be read."""
        template = None if asked.chat == "plain" else ChatTemplate.of_folder(folder, asked.chat_options)
        if template is None and (asked.chat == "template" or asked.chat_options):
            raise ValueError(
                f"model.chat: {asked.source} has no chat template (chat_template.jinja, or chat_template in "
                "tokenizer_config.json); leave model.chat and model.chat_options empty, or give it one"
            )
        return cls(Tokenizer.from_folder(folder), template, keeps_history=asked.history == "as_generated")

    @property
    def is_by_template(self) -> bool:
        return self._template is not None

    def try_out(self, observed_as: Role | None) -> None:
        """Raises `ValueError` of a template that does not take conversations of this kind."""
        prompt = Prompt(split="train", ordinal=0, text="question", facts={})
        opened = self.opened(prompt)
        if observed_as is not None:
            observed = [Observation(text="answer", role=observed_as)]
            self.went_on(prompt, opened.text, [Turn(text="turn")], observed)

    def tells_of(self, tools: Sequence[Tool]) -> bool:
        """Whether a model hears of these tools."""
        prompt = Prompt(split="train", ordinal=0, text="question", facts={}, tools=tuple(tools))
        return self.is_by_template and self.opened(prompt).text != self.opened(replace(prompt, tools=())).text

    def opened(self, prompt: Prompt) -> Worded:
        """Raises `ValueError`."""
        if self._template is None:
            _refuse_messages(prompt)
            return Worded(ids=tuple(self._tokenizer.encode(prompt.text)), text=prompt.text)
        return self._rendered(self._template, prompt, ())

    def heard(self, ids: Sequence[int]) -> Heard:
        text = self._tokenizer.decode(ids)
        return Heard(turn=Turn(text=text), exactly=text + self._tokenizer.end_of(ids))

    def went_on(self, prompt: Prompt, said: str, turns: Sequence[Turn], observed: Sequence[Observation]) -> Worded:
        """`said`: the text so far, of this segment. The last turn was answered by the last observation. Raises
        `ValueError`."""
        if self._template is None:
            text = observed[-1].text
            return Worded(ids=tuple(self._tokenizer.encode(text, goes_on=True)), text=text)
        dialogue = _dialogue(turns, observed)
        if self._keeps_history:
            rest = self._behind_last_answer(self._template, prompt, dialogue).removeprefix(self._end_of(said))
            return Worded(ids=self._ids(rest), text=rest)
        whole = self._rendered(self._template, prompt, dialogue)
        if not whole.text.startswith(said):
            return Worded(ids=whole.ids, text=whole.text, begins_anew=True)
        rest = whole.text[len(said) :]
        return Worded(ids=self._ids(rest), text=rest)

    def _behind_last_answer(self, template: ChatTemplate, prompt: Prompt, dialogue: Sequence[Message]) -> str:
        """What the template renders behind the last answer. A stand-in takes the answer's place, since the template may
        change or drop parts of a real one."""
        *earlier, last, observation = dialogue
        stand_in = _absent_from(json.dumps([prompt.text, prompt.messages, prompt.tools, dialogue]))
        text = self._text(template, prompt, [*earlier, {**last, "content": stand_in}, observation])
        _, found, rest = text.partition(stand_in)
        if not found or stand_in in rest:
            raise ValueError(
                "the chat template does not show the model's last answer once, as model.history as_generated needs; "
                "leave model.history at template"
            )
        return rest

    def _rendered(self, template: ChatTemplate, prompt: Prompt, dialogue: Sequence[Message]) -> Worded:
        text = self._text(template, prompt, dialogue)
        return Worded(ids=self._ids(text), text=text)

    def _text(self, template: ChatTemplate, prompt: Prompt, dialogue: Sequence[Message]) -> str:
        begun = prompt.messages or ({"role": "user", "content": prompt.text.strip()},)
        return template.rendered([*begun, *dialogue], prompt.tools)

    def _end_of(self, said: str) -> str:
        """The text of the token that ended the last answer. Empty where a stop string ended it."""
        ends = (self._tokenizer.end_of([token]) for token in self._tokenizer.eos_ids)
        return next((end for end in ends if said.endswith(end)), "")

    def _ids(self, rendered: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode_rendered(rendered))


def _dialogue(turns: Sequence[Turn], observed: Sequence[Observation]) -> list[Message]:
    """White space around an observation sets it apart from a turn where nothing else does."""
    return [
        message
        for turn, observation in zip(turns, observed, strict=True)
        for message in (
            {"role": "assistant", "content": turn.text},
            {"role": observation.role, "content": observation.text.strip()},
        )
    ]


def _absent_from(text: str) -> str:
    stand_in = "STAND-IN"
    while stand_in in text:
        stand_in += "-IN"
    return stand_in


def _refuse_messages(prompt: Prompt) -> None:
    if prompt.messages or prompt.tools:
        raise ValueError(
            "a prompt of messages or with tools needs a model with a chat template, and model.chat not plain"
        )
