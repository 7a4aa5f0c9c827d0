"""Renders prompts and observations to the tokens that the model reads.

    by template   the template renders the whole conversation; the text behind the current segment is appended
    plain         a text is tokenized as it is: for a model without a template, and for a job that wants none

Invariants:
- sampled tokens are never tokenized again while the template reproduces them: the rendered text then begins with the
  exact text of the segment;
- where it does not (templates that drop earlier thoughts, or white space), a new segment begins, which reads the whole
  conversation as the template now renders it. Sampled tokens stay in the segment that they were sampled in;
- with `model.history` as_generated no new segment begins: the template renders a placeholder for the last answer,
  and only the text behind the placeholder is appended.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from engine.environments.port import Message, Observation, Prompt, Role, Tool, Turn
from engine.live.texts.model_texts import ModelTemplate, ModelTexts, ModelTokenizer, open_texts
from engine.spec.job import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    ids: tuple[int, ...]
    text: str
    starts_segment: bool = False
    """It contains the whole history, as the template renders it now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedTurn:
    turn: Turn
    exact_text: str
    """With the text of the token that ended the turn."""


class Wording:
    def __init__(
        self,
        tokenizer: ModelTokenizer,
        template: ModelTemplate | None,
        *,
        keeps_history: bool = False,
        is_bounded: bool = False,
    ) -> None:
        """`is_bounded`: tokenizer and template run in the bounded process, so a call waits for it."""
        self._tokenizer, self._template, self._keeps_history = tokenizer, template, keeps_history
        self.is_bounded = is_bounded

    @classmethod
    def of_model(cls, folder: Path, model: ModelSpec) -> Self:
        """Raises `ValueError` if the job requires a template and the model has none, or it cannot be parsed."""
        texts = open_model_texts(folder, model)
        if texts.template is None and (model.chat == "template" or model.chat_options):
            raise ValueError(
                f"model.chat: {model.source} has no chat template (chat_template.jinja, or chat_template in "
                "tokenizer_config.json); leave model.chat and model.chat_options empty, or add a template to it"
            )
        keeps_history = model.history == "as_generated"
        return cls(texts.tokenizer, texts.template, keeps_history=keeps_history, is_bounded=texts.are_bounded)

    @property
    def is_by_template(self) -> bool:
        return self._template is not None

    def try_out(self, observed_as: Role | None) -> None:
        """Raises `ValueError` if the template rejects conversations of this kind."""
        prompt = Prompt(split="train", ordinal=0, text="question", facts={})
        opened = self.render_prompt(prompt)
        if observed_as is not None:
            observed = [Observation(text="answer", role=observed_as)]
            self.render_observation(prompt, opened.text, [Turn(text="turn")], observed)

    def shows_tools(self, tools: Sequence[Tool]) -> bool:
        """Whether the template shows these tools to the model."""
        prompt = Prompt(split="train", ordinal=0, text="question", facts={}, tools=tuple(tools))
        return (
            self.is_by_template
            and self.render_prompt(prompt).text != self.render_prompt(replace(prompt, tools=())).text
        )

    def render_prompt(self, prompt: Prompt) -> Rendered:
        """The rendered prompt. Raises `ValueError` if it cannot be rendered."""
        if self._template is None:
            _refuse_messages(prompt)
            return Rendered(ids=tuple(self._tokenizer.encode(prompt.text)), text=prompt.text)
        text = self._render_text(self._template, prompt, ())
        return Rendered(ids=self._encode(text), text=text)

    def decode(self, ids: Sequence[int]) -> DecodedTurn:
        text = self._tokenizer.decode(ids)
        return DecodedTurn(turn=Turn(text=text), exact_text=text + self._tokenizer.end_of(ids))

    def render_observation(
        self, prompt: Prompt, segment: str, turns: Sequence[Turn], observed: Sequence[Observation]
    ) -> Rendered:
        """The last observation, rendered. `segment`: its exact text so far. Raises `ValueError` if rendering fails."""
        if self._template is None:
            text = observed[-1].text
            return Rendered(ids=tuple(self._tokenizer.encode(text, goes_on=True)), text=text)
        dialogue = _dialogue(turns, observed)
        if self._keeps_history:
            rest = self._render_rest(self._template, prompt, dialogue).removeprefix(self._end_of(segment))
            return Rendered(ids=self._encode(rest), text=rest)
        whole = self._render_text(self._template, prompt, dialogue)
        if not whole.startswith(segment):
            return Rendered(ids=self._encode(whole), text=whole, starts_segment=True)
        rest = whole[len(segment) :]
        return Rendered(ids=self._encode(rest), text=rest)

    def _render_rest(self, template: ModelTemplate, prompt: Prompt, dialogue: Sequence[Message]) -> str:
        """Renders what follows the last answer. A placeholder replaces that answer, since the template may change or
        drop parts of a real one."""
        *earlier, last, observation = dialogue
        placeholder = _absent_from(json.dumps([prompt.text, prompt.messages, prompt.tools, dialogue]))
        text = self._render_text(template, prompt, [*earlier, {**last, "content": placeholder}, observation])
        _, match, rest = text.partition(placeholder)
        if not match or placeholder in rest:
            raise ValueError(
                "model.history: as_generated needs a chat template that shows the model's last answer exactly once; "
                "leave model.history at template"
            )
        return rest

    def _render_text(self, template: ModelTemplate, prompt: Prompt, dialogue: Sequence[Message]) -> str:
        opening = prompt.messages or ({"role": "user", "content": prompt.text.strip()},)
        return template.rendered([*opening, *dialogue], prompt.tools)

    def _end_of(self, text: str) -> str:
        """The text of the token that ended the last answer; empty if a stop string ended it."""
        ends = (self._tokenizer.end_of([token]) for token in self._tokenizer.eos_ids)
        return next((end for end in ends if text.endswith(end)), "")

    def _encode(self, rendered: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(rendered, goes_on=True))


def open_model_texts(folder: Path, model: ModelSpec) -> ModelTexts:
    return open_texts(folder, by_template=model.chat != "plain", options=model.chat_options)


def _dialogue(turns: Sequence[Turn], observed: Sequence[Observation]) -> list[Message]:
    """Strips observations: their white space separates them from turns only in plain text."""
    return [
        message
        for turn, observation in zip(turns, observed, strict=True)
        for message in (
            {"role": "assistant", "content": turn.text},
            {"role": observation.role, "content": observation.text.strip()},
        )
    ]


def _absent_from(text: str) -> str:
    placeholder = "STAND-IN"
    while placeholder in text:
        placeholder += "-IN"
    return placeholder


def _refuse_messages(prompt: Prompt) -> None:
    if prompt.messages or prompt.tools:
        raise ValueError(
            "a prompt with messages or tools needs a model with a chat template, and model.chat other than plain"
        )
