"""Single-turn questions from a JSONL file, judged by a named verifier."""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Final, Self

from engine.environments.params import ParamReader, Params
from engine.environments.port import Prompt, Split, Turn, Verdict
from engine.environments.questions import QuestionFile
from engine.environments.verifiers import Verify, make_verifier

HELD_OUT_SHARE: Final = 0.125


class Jsonl:
    name: ClassVar[str] = "jsonl"

    def __init__(self, *, questions: QuestionFile, verify: Verify) -> None:
        self._questions = questions
        self._verify = verify

    @classmethod
    def from_params(cls, seed: int, params: Params, timeout_s: float) -> Self:
        reader = ParamReader(cls.name, params)
        data = reader.text("data", "")
        share = reader.number("held_out_share", HELD_OUT_SHARE, 0.001, 0.9)
        verify = make_verifier(reader, timeout_s=timeout_s)
        reader.finish()
        if not data:
            raise ValueError("jsonl: data: the name of a JSONL file; it is required")
        return cls(questions=QuestionFile(Path(data), seed=seed, held_out_share=share), verify=verify)

    def prompt(self, split: Split, ordinal: int) -> Prompt:
        question = self._questions.question(split, ordinal)
        return Prompt(split=split, ordinal=ordinal, text=question.prompt, facts={"answer": question.answer})

    def respond(self, prompt: Prompt, turns: Sequence[Turn]) -> Verdict:
        if len(turns) != 1:
            raise ValueError(f"turns: jsonl has exactly one, got {len(turns)}")
        return self._verify(str(prompt.facts["answer"]), turns[0].text)
