"""A data set: its splits, and which question is asked when.

Invariants:
- a data set with bad rows is refused before the job begins; all of them are named, by file and number;
- eight bytes a row stay in memory, and eight more where rows are held out by a column or a file;
- a prompt is the same in every process that reads the same files with the same seed;
- no prompt is in both splits: held out by a hash of its text it cannot be, by a column or a file it is refused.
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
from engine.environments.splits import check_asked, place_in_order, split_of_text

Accept = Callable[[Prompt], None]
"""Raises `ValueError` of a prompt that cannot be put to the model."""

PLACE_BITS: Final = 44  # of a place, a file's number above them: 16 TB in each of a million files
TOLD: Final = 20  # bad rows with their reasons; of the others the numbers are told
NUMBERED: Final = 1_000  # then the data set is another one than was meant, and is read no further


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """Which rows are held out: a share by a hash, unless one of the others is given."""

    share: float = 0.125
    data: Path | None = None
    """Files of their own."""
    column: str = ""
    value: str = "test"
    """Of that column, as text."""

    @property
    def is_by_hash(self) -> bool:
        return self.data is None and not self.column


@dataclass(slots=True)
class _BadRows:
    told: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)

    def add(self, where: str, wrong: str) -> None:
        """Raises `ValueError` when there are more than anybody reads."""
        if len(self.told) < TOLD:
            self.told.append(f"{where}: {wrong}")
        else:
            self.others.append(where)
        if len(self.others) == NUMBERED:
            self.refuse(beyond=", and perhaps more behind them")

    def refuse(self, *, beyond: str = "") -> None:
        if self.others:
            self.told.append(f"and {len(self.others)} more: {', '.join(self.others)}{beyond}")
        if self.told:
            raise ValueError("\n".join(self.told))


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
        """`accept` is shown the prompt of every question. Raises `ValueError`."""
        self._seed, self._accept = seed, accept
        self._columns, self._held_out = columns or Columns(), held_out or HeldOut()
        self._files = open_files(path)
        self._num_shared = len(self._files)
        if self._held_out.data is not None:
            self._files += open_files(self._held_out.data)
        self._places: dict[Split, array[int]] = {"train": array("Q"), "held_out": array("Q")}
        self._index()
        for split, places in self._places.items():
            if not places:
                raise ValueError(f"data: {path.name} has no prompt in the split {split}; {self._remedy}")

    def num(self, split: Split) -> int:
        return len(self._places[split])

    def question(self, split: Split, ordinal: int) -> Question:
        check_asked(split, ordinal)
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
                except (ValueError, RecursionError) as error:  # the latter of what is nested too deeply
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
            raise ValueError(f"{held_out.column}: the column that says which rows are held out, and it is not there")
        return "held_out" if str(row.fields[held_out.column]) == held_out.value else "train", question

    def _refuse_shared(self, shared: set[int]) -> None:
        bad = _BadRows()
        for number, file in enumerate(self._files):
            for row in file.rows():
                split, question = self._read(number, row)
                if split == "train" and _hash_of(question) in shared:
                    bad.add(_where(file, row), "this prompt is held out too, so that it would be learned by heart")
        bad.refuse()

    @property
    def _remedy(self) -> str:
        held_out = self._held_out
        if held_out.data is not None:
            return "both files must have rows"
        if held_out.column:
            return f"held out are rows whose {held_out.column} is {held_out.value!r}"
        return f"give it more rows, or another held_out_share than {held_out.share:g}"


def _where(file: RowFile, row: Row) -> str:
    return f"{file.name}:{row.number}"


def _hash_of(question: Question) -> int:
    return int.from_bytes(hashlib.blake2b(question.identity.encode(errors="surrogatepass"), digest_size=8).digest())
