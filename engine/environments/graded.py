"""Questions from files, judged by a customer's own function, which receives every column of the row."""

from collections.abc import Sequence
from typing import ClassVar, Self

from engine.environments.judging.own_judge import OwnJudge
from engine.environments.params import ParamReader, Params
from engine.environments.port import Observation, Prompt, Split, Turn, Verdict
from engine.environments.questions.data_set import Questions
from engine.environments.questions.params import DataParams


class Graded:
    name: ClassVar[str] = "graded"

    def __init__(self, *, questions: Questions, judge: OwnJudge) -> None:
        self._questions, self._judge = questions, judge

    @classmethod
    def from_params(cls, seed: int, params: Params, code: str, timeout_s: float) -> Self:
        reader = ParamReader(cls.name, params)
        data = DataParams.of(reader, all_to_judge=True)
        reader.finish()
        if not data.data:
            raise ValueError("graded: data: required, the name of a file of questions or of a folder of such files")
        judge = OwnJudge(cls.name, code=code, timeout_s=timeout_s)
        return cls(questions=data.open_questions(seed=seed), judge=judge)

    def prompt(self, split: Split, ordinal: int) -> Prompt:
        return self._questions.prompt(split, ordinal)

    def respond(self, prompt: Prompt, turns: Sequence[Turn]) -> Observation | Verdict:
        return self._judge.respond(prompt, turns)

    def conclude(self, prompt: Prompt, turns: Sequence[Turn]) -> Verdict:
        return self._judge.conclude(prompt, turns)
