"""Single-turn questions from files, judged by a named verifier."""

from collections.abc import Sequence
from typing import ClassVar, Self

from engine.environments.judging.verifiers import Verify, make_verifier
from engine.environments.params import ParamReader, Params
from engine.environments.port import Prompt, Split, Turn, Verdict
from engine.environments.questions.data_set import Questions
from engine.environments.questions.params import DataParams


class Jsonl:
    name: ClassVar[str] = "jsonl"

    def __init__(self, *, questions: Questions, verify: Verify) -> None:
        self._questions = questions
        self._verify = verify

    @classmethod
    def from_params(cls, seed: int, params: Params, timeout_s: float) -> Self:
        reader = ParamReader(cls.name, params)
        data = DataParams.of(reader)
        verify = make_verifier(reader, timeout_s=timeout_s)
        reader.finish()
        if not data.data:
            raise ValueError("jsonl: data: required, the name of a file of questions or of a folder of such files")
        return cls(questions=data.open_questions(seed=seed), verify=verify)

    def prompt(self, split: Split, ordinal: int) -> Prompt:
        return self._questions.prompt(split, ordinal)

    def respond(self, prompt: Prompt, turns: Sequence[Turn]) -> Verdict:
        if len(turns) != 1:
            raise ValueError(f"turns: jsonl has exactly one, got {len(turns)}")
        return self._verify(str(prompt.facts["answer"]), turns[0].text)
