"""The parameters of a data set, shared by the environments that take questions from one."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from engine.environments.params import ParamReader
from engine.environments.questions.data_set import Accept, HeldOut, Questions
from engine.environments.questions.question import Columns
from engine.spec.environment_params import ENVIRONMENTS

HELD_OUT_SHARE: Final = float(ENVIRONMENTS["jsonl"].params["held_out_share"].default)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataParams:
    data: Path | None
    columns: Columns
    held_out: HeldOut

    @classmethod
    def of(cls, reader: ParamReader, *, all_to_judge: bool = False, brings_tools: bool = True) -> "DataParams":
        """`brings_tools`: rows may have tools. Raises `ValueError`."""
        data, held_out_data = reader.file("data"), reader.file("held_out_data")
        share = reader.number("held_out_share")
        column = reader.text("held_out_column")
        value = reader.text("held_out_value")
        given = [
            name
            for name, is_given in (
                ("held_out_share", share != HELD_OUT_SHARE),
                ("held_out_column", bool(column)),
                ("held_out_data", bool(held_out_data)),
            )
            if is_given
        ]
        if len(given) > 1:
            raise ValueError(f"{given[1]}: not together with {given[0]}; set only one of them")
        if value != "test" and not column:
            raise ValueError(f"held_out_value: only together with held_out_column, got {value!r} alone")
        columns = Columns(
            prompt=reader.text("prompt_column"),
            answer=reader.text("answer_column"),
            tools=reader.text("tools_column") if brings_tools else "",
            all_to_judge=all_to_judge,
        )
        held_out = HeldOut(share=share, data=held_out_data, column=column, value=value)
        return cls(data=data, columns=columns, held_out=held_out)

    def open_questions(self, *, seed: int, accept: Accept | None = None) -> Questions:
        """Raises `ValueError`."""
        assert self.data is not None, "the spec names no data set"
        return Questions(self.data, seed=seed, held_out=self.held_out, columns=self.columns, accept=accept)
