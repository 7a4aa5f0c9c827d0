"""The parameters of a data set, shared by the environments that take questions from one."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from engine.environments.params import ParamReader
from engine.environments.questions.data_set import Accept, HeldOut, Questions
from engine.environments.questions.question import Columns
from engine.spec.environments.params import ENVIRONMENTS, check_held_out

HELD_OUT_SHARE: Final = float(ENVIRONMENTS["jsonl"].params["held_out_share"].default)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataParams:
    data: Path | None
    columns: Columns
    held_out: HeldOut

    @classmethod
    def of(cls, reader: ParamReader, *, all_to_judge: bool = False, brings_tools: bool = True) -> "DataParams":
        """`brings_tools`: rows may have tools. Raises `ValueError`."""
        held_out = HeldOut(
            share=reader.number("held_out_share"),
            data=reader.file("held_out_data"),
            column=reader.text("held_out_column"),
            value=reader.text("held_out_value"),
        )
        reader.check(check_held_out)
        columns = Columns(
            prompt=reader.text("prompt_column"),
            answer=reader.text("answer_column"),
            tools=reader.text("tools_column") if brings_tools else "",
            all_to_judge=all_to_judge,
        )
        return cls(data=reader.file("data"), columns=columns, held_out=held_out)

    def open_questions(self, *, seed: int, accept: Accept | None = None) -> Questions:
        """Raises `ValueError`."""
        assert self.data is not None, "the spec names no data set"
        return Questions(self.data, seed=seed, held_out=self.held_out, columns=self.columns, accept=accept)
