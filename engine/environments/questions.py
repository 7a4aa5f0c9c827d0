"""Questions with answers, read from a JSONL file by position: the file may be far larger than memory.

    {"prompt": "What is 6 times 7?", "answer": "42"}

Invariants:
- a file with a bad line is refused before the job begins, with file and line;
- only eight bytes a line stay in memory;
- a prompt is the same in every process that reads the same file with the same seed.
"""

import json
import os
from array import array
from pathlib import Path
from typing import Final, NamedTuple

from engine.environments.port import GraderError, Split
from engine.environments.splits import check_asked, place_in_order, split_of_text

MAX_LINE_BYTES: Final = 4 << 20  # a longer one is not JSONL but something that lost its line ends


class Question(NamedTuple):
    prompt: str
    answer: str
    """As text; lists and objects as JSON."""
    line: int


class QuestionFile:
    def __init__(self, path: Path, *, seed: int, held_out_share: float) -> None:
        self._path = path
        self._seed = seed
        self._offsets: dict[Split, array[int]] = {"train": array("Q"), "held_out": array("Q")}
        try:
            self._file = path.open("rb")
        except OSError as error:
            raise ValueError(f"data: {path.name} cannot be read: {error.strerror}") from error
        self._index(held_out_share)
        for split, offsets in self._offsets.items():
            if not offsets:
                raise ValueError(
                    f"data: {path.name} has no prompt in the split {split}; give it more lines, or another "
                    f"held_out_share than {held_out_share:g}"
                )

    def num(self, split: Split) -> int:
        return len(self._offsets[split])

    def question(self, split: Split, ordinal: int) -> Question:
        check_asked(split, ordinal)
        offsets = self._offsets[split]
        offset = offsets[place_in_order(ordinal, len(offsets), f"questions/{self._seed}/{split}")]
        try:
            return _parsed(self._line_at(offset), self._path.name, 0)
        except ValueError as error:
            raise GraderError(f"{self._path.name} was changed while in use: {error}", retryable=False) from error

    def _index(self, held_out_share: float) -> None:
        offset = 0
        for number, line in enumerate(iter(lambda: self._file.readline(MAX_LINE_BYTES + 1), b""), start=1):
            if len(line) > MAX_LINE_BYTES:
                raise ValueError(f"{self._path.name}:{number}: longer than {MAX_LINE_BYTES} bytes")
            if line.strip():
                question = _parsed(line, self._path.name, number)
                self._offsets[split_of_text(question.prompt, held_out_share)].append(offset)
            offset += len(line)

    def _line_at(self, offset: int) -> bytes:
        """By position, without moving the file's own: many threads read at once."""
        read, chunk = b"", 16 << 10
        while b"\n" not in read and len(read) < MAX_LINE_BYTES:
            part = os.pread(self._file.fileno(), chunk, offset + len(read))
            if not part:
                break
            read += part
        return read.partition(b"\n")[0]


def _parsed(line: bytes, file: str, number: int) -> Question:
    where = f"{file}:{number}" if number else file
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: not a line of JSON: {error}") from error
    if not isinstance(fields, dict):
        raise ValueError(f'{where}: an object with "prompt" and "answer", got {type(fields).__name__}')
    prompt, answer = fields.get("prompt"), fields.get("answer")
    if not isinstance(prompt, str) or not prompt.strip():
        raise ValueError(f"{where}: prompt: a text that is not empty, got {prompt!r:.100}")
    if isinstance(answer, bool) or not isinstance(answer, str | int | float | list | dict):
        raise ValueError(f"{where}: answer: a text, a number, a list or an object, got {answer!r:.100}")
    return Question(prompt=prompt, answer=answer if isinstance(answer, str) else json.dumps(answer), line=number)
