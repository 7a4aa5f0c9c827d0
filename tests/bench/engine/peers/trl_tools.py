"""An environment's turns in TRL: as its tools, or in a loop of our own.

The environment continues to the next turn after any text, so every answer counts as a call of the tool.

Invariant: the waits are the environment's own, drawn by prompt, sample and turn.
"""

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from transformers import PreTrainedTokenizerFast

from engine.environments.port import Observation, Prompt, Turn, Verdict
from engine.environments.tools.tool_sums import ToolSums
from tests.bench.engine.peers.tasks import GROUP

# TRL renders one made-up conversation, to see what comes between an answer and the next.
CHAT_TEMPLATE: Final = (
    "{% for message in messages %}{{ message.content }}"
    "{% if message.role == 'assistant' %}"
    "{% for call in message.tool_calls or [] %}{{ call.function.name }}{{ call.function.arguments }}{% endfor %}."
    "{% endif %}{% endfor %}"
)
# TRL requires one; answers are parsed below.
RESPONSE_TEMPLATE: Final = {"fields": {"content": {"content": "text"}}}


class ToolTokenizer(PreTrainedTokenizerFast):
    def parse_response(self, response: Any, *_: object, **__: object) -> dict[str, Any]:
        call = {"type": "function", "function": {"name": ToolTurns.next_term.__name__, "arguments": {}}}
        return {"role": "assistant", "content": self.decode(response), "tool_calls": [call]}


class ToolTurns:
    """TRL makes one for each sample of a batch and reuses it for the next: its number is the sample's in its group."""

    def __init__(self, environment: ToolSums, number: int) -> None:
        self._environment, self._number = environment, number
        self._num_turns = 0
        self.prompt = of_sample(environment, 0, number)

    def reset(self, *, ordinal: int, **_: object) -> None:
        self.prompt, self._num_turns = of_sample(self._environment, ordinal, self._number), 0

    def next_term(self) -> str:
        """
        Returns the next term.

        Returns:
            The term.
        """
        self._num_turns += 1
        observation = self._environment.respond(self.prompt, [Turn(text="")] * self._num_turns)
        assert isinstance(observation, Observation)
        return observation.text


def make_tools(environment: ToolSums) -> Callable[[], ToolTurns]:
    numbers = itertools.count()
    return lambda: ToolTurns(environment, next(numbers))


def of_sample(environment: ToolSums, ordinal: int, number: int) -> Prompt:
    prompt = environment.prompt("train", ordinal)
    return replace(prompt, facts={**prompt.facts, "sample": number % GROUP})


def rewards_of(environment: ToolSums, ordinals: Sequence[int], answers: Sequence[Sequence[str]]) -> list[float]:
    """The rewards; 0 for an answer cut off before its last turn."""
    verdicts = [
        environment.respond(environment.prompt("train", ordinal), [Turn(text=text) for text in texts])
        if len(texts) == environment.num_turns
        else None
        for ordinal, texts in zip(ordinals, answers, strict=True)
    ]
    return [verdict.reward if isinstance(verdict, Verdict) else 0.0 for verdict in verdicts]


class TurnsAtOnce:
    """TRL's `rollout_func`: the turns of a whole batch one after the other, and in each all its waits at once."""

    def __init__(self, environment: ToolSums, tokenizer: Any, *, max_tokens: int) -> None:
        self._environment, self._tokenizer, self._max_tokens = environment, tokenizer, max_tokens
        self._numbers = itertools.count()

    def __call__(self, prompts: Sequence[str], trainer: Any) -> dict[str, Any]:
        asked = [self._next(text) for text in prompts]
        prompt_ids: list[list[int]] = self._tokenizer(text=list(prompts))["input_ids"]
        answers: list[list[int]] = [[] for _ in prompts]
        masks: list[list[int]] = [[] for _ in prompts]
        texts: list[list[str]] = [[] for _ in prompts]
        for turn in range(self._environment.num_turns):
            if turn:
                self._observe(asked, turn, answers, masks)
            so_far = [own + answer for own, answer in zip(prompt_ids, answers, strict=True)]
            said, _ = trainer._generate_single_turn(so_far, None, {}, num_generations=1)
            for ids, answer, mask, text in zip(said, answers, masks, texts, strict=True):
                text.append(self._tokenizer.decode(ids))
                answer += ids
                mask += [1] * len(ids)
        longest = self._max_tokens
        return {
            "prompt_ids": prompt_ids,
            "completion_ids": [answer[:longest] for answer in answers],
            "env_mask": [mask[:longest] for mask in masks],
            "logprobs": None,
            "said": texts,
        }

    def _next(self, text: str) -> Prompt:
        """TRL passes only the prompt's text, but processes prompts in order."""
        number = next(self._numbers)
        prompt = of_sample(self._environment, number // GROUP, number)
        assert prompt.text == text, f"{text!r} is not prompt {number // GROUP}"
        return prompt

    def _observe(self, prompts: Sequence[Prompt], turn: int, answers: list[list[int]], masks: list[list[int]]) -> None:
        wait_s = max(self._environment.waits.seconds(prompt, turn - 1) for prompt in prompts)
        time.sleep(wait_s)
        for prompt, answer, mask in zip(prompts, answers, masks, strict=True):
            ids = self._tokenizer(text=self._environment.observation(prompt, turn).text)["input_ids"]
            answer += ids
            mask += [0] * len(ids)
