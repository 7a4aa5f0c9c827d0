"""A data set: its splits, and the order of its questions.

Invariants:
- a data set with bad rows is refused before the job begins; the error names them by file and number;
- eight bytes a row stay in memory, and eight more where a column or a file decides which rows are held out;
- a prompt is the same in every process that reads the same files with the same seed;
- no prompt is in both splits: a split by hash rules that out, and with a column or a file such prompts are refused.
"""

import hashlib
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from engine.environments.port import GraderError, Prompt, Split
from engine.environments.questions.files import RowFile, open_files
from engine.environments.questions.question import Columns, Question, Row, question_of
from engine.environments.splits import check_place, place_in_order, split_of_text

Accept = Callable[[Prompt], None]
"""Raises `ValueError` for a prompt that the model cannot be given."""

PLACE_BITS: Final = 44  # of a place, the file's index above them: 16 TB in each of a million files
NUM_EXPLAINED: Final = 20  # bad rows with their reasons; of the others only file and number are listed
NUM_LISTED: Final = 1_000  # with more bad rows it is probably the wrong data set, and reading stops


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """Which rows are held out: a share by hash, unless `data` or `column` is given."""

    share: float = 0.125
    data: Path | None = None
    """The held-out rows are all rows of these files."""
    column: str = ""
    value: str = "test"
    """The held-out rows have this value, as text, in `column`."""

    @property
    def is_by_hash(self) -> bool:
        return self.data is None and not self.column


@dataclass(slots=True)
class _BadRows:
    explained: list[str] = field(default_factory=list)
    listed: list[str] = field(default_factory=list)

    def add(self, where: str, wrong: str) -> None:
        """Raises `ValueError` once `NUM_LISTED` rows are listed."""
        if len(self.explained) < NUM_EXPLAINED:
            self.explained.append(f"{where}: {wrong}")
        else:
            self.listed.append(where)
        if len(self.listed) == NUM_LISTED:
            self.refuse(beyond=", possibly more: the rest was not read")

    def refuse(self, *, beyond: str = "") -> None:
        if self.listed:
            self.explained.append(f"and {len(self.listed)} more: {', '.join(self.listed)}{beyond}")
        if self.explained:
            raise ValueError("\n".join(self.explained))


class Questions:
    def __init__(
        self,
        path: Path,
        *,
        seed: int,
        held_out: HeldOut | None = None,
        columns: Columns | None = None,
        accept: Accept | None = None,
    ) -> None:
        """Calls `accept` with the prompt of every question. Raises `ValueError`."""
        self._seed, self._accept = seed, accept
        self._columns, self._held_out = columns or Columns(), held_out or HeldOut()
        columns_read = None if self._columns.all_to_judge else {*self._columns.own, self._held_out.column}
        self._files = open_files(path, columns_read)
        self._num_shared = len(self._files)
        if self._held_out.data is not None:
            self._files += open_files(self._held_out.data, columns_read)
        self._places: dict[Split, array[int]] = {"train": array("Q"), "held_out": array("Q")}
        self._index()
        for split, places in self._places.items():
            if not places:
                raise ValueError(f"data: {path.name} has no prompt in the split {split}; {self._remedy}")

    def num(self, split: Split) -> int:
        return len(self._places[split])

    def question(self, split: Split, ordinal: int) -> Question:
        check_place(split, ordinal)
        places = self._places[split]
        place = places[place_in_order(ordinal, len(places), f"questions/{self._seed}/{split}")]
        file = self._files[place >> PLACE_BITS]
        try:
            return question_of(file.at(place & ((1 << PLACE_BITS) - 1)), self._columns)
        except ValueError as error:
            raise GraderError(f"{file.name} was changed while in use: {error}", retryable=False) from error

    def prompt(self, split: Split, ordinal: int) -> Prompt:
        return self.question(split, ordinal).as_prompt(split, ordinal)

    def _index(self) -> None:
        bad, known = _BadRows(), {split: array("Q") for split in self._places}
        for number, file in enumerate(self._files):
            for row in file.rows():
                try:
                    split, question = self._read(number, row)
                except (ValueError, RecursionError) as error:  # RecursionError: fields nested too deeply
                    bad.add(_where(file, row), str(error))
                    continue
                self._places[split].append(number << PLACE_BITS | row.place)
                if not self._held_out.is_by_hash:
                    known[split].append(_hash_of(question))
        bad.refuse()
        if shared := set(known["held_out"]).intersection(known["train"]):
            self._refuse_shared(shared)

    def _read(self, number: int, row: Row) -> tuple[Split, Question]:
        if row.wrong:
            raise ValueError(row.wrong)
        question, held_out = question_of(row.fields, self._columns), self._held_out
        if self._accept is not None:
            self._accept(question.as_prompt("train", 0))
        if held_out.data is not None:
            return "held_out" if number >= self._num_shared else "train", question
        if not held_out.column:
            return split_of_text(question.identity, held_out.share), question
        if held_out.column not in row.fields:
            raise ValueError(f"{held_out.column}: column is missing, which held_out_column names; add it to every row")
        return "held_out" if str(row.fields[held_out.column]) == held_out.value else "train", question

    def _refuse_shared(self, shared: set[int]) -> None:
        bad = _BadRows()
        for number, file in enumerate(self._files):
            for row in file.rows():
                split, question = self._read(number, row)
                if split == "train" and _hash_of(question) in shared:
                    bad.add(_where(file, row), "this prompt is also held out; remove it from one of the two splits")
        bad.refuse()

    @property
    def _remedy(self) -> str:
        held_out = self._held_out
        if held_out.data is not None:
            return "data and held_out_data must both have rows"
        if held_out.column:
            return f"rows with {held_out.value!r} in the column {held_out.column} are held out"
        return f"add rows, or change held_out_share (now {held_out.share:g})"


def _where(file: RowFile, row: Row) -> str:
    return f"{file.name}:{row.number}"


def _hash_of(question: Question) -> int:
    return int.from_bytes(hashlib.blake2b(question.identity.encode(errors="surrogatepass"), digest_size=8).digest())
