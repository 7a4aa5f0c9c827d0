"""The bounded process that runs a customer's chat template and tokenizer, one for each model of this process.

    replica, driver, model check ──render, encode, decode──▶ sandboxed process (inside.py) ──▶ text or tokens

Template and tokenizer may loop, allocate, panic or recurse on a text of the customer's choosing. That costs one text.

Invariants:
- a call ends within its own time (`TEXT_S`) and the process within its memory: the text is then refused with a
  `ValueError`, and a fresh process serves the next call;
- only a process that did not start, or got no core, raises `TextsUnavailable`: no text is refused for that;
- on a host without a sandbox the process has the same limits, and no walls (`sandbox/bare.py`);
- files are read here, up to a size, and parsed there.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from engine.environments.sandbox.outcome import Limits, Refused, Starved
from engine.environments.sandbox.own_time import patience_s
from engine.environments.sandbox.worker import CallFailed, WorkerPool
from engine.models import chat, tokenizer
from engine.process.progress import working

log = logging.getLogger(__name__)

TEXT_S: Final = 20.0
"""Own time for one text: tokenizers read a megabyte in about a second, and a prompt has at most four."""
LONGEST_CALL_S: Final = patience_s(TEXT_S)
"""With waits for a core."""
MEMORY_BYTES: Final = 2 << 30
"""A vocabulary of 256,000 tokens takes half a gigabyte while it is parsed."""
MOST_FILE_BYTES: Final = 128 << 20
WORDS_A_CALL: Final = 20_000
MOST_WORDS_LETTERS: Final = 64 << 20
PACKAGES: Final = ("tokenizers", "jinja2")
_MAIN: Final = Path(__file__).parent / "inside.py"
_FILES: Final = (
    "tokenizer.json",
    "config.json",
    "generation_config.json",
    chat.CONFIG_FILE,
    chat.WORDS_FILE,
    chat.TEMPLATE_FILE,
)


class TextsUnavailable(Exception):
    """The process for texts did not start, or got no core."""


class Described(NamedTuple):
    ends: Mapping[int, str]
    """The text of each end token."""
    num_words: int


class TextProcess:
    """Safe for any number of threads; calls take turns."""

    def __init__(self, folder: Path, options: Mapping[str, Any]) -> None:
        """Raises `ValueError` if the folder's files are missing, too large or not text."""
        code = {"main.py": _MAIN, "chat.py": Path(chat.__file__), "tokenizer.py": Path(tokenizer.__file__)}
        files = _read_files(folder) | {name: source.read_text() for name, source in code.items()}
        self._files = {**files, "options.json": json.dumps(dict(options))}
        self._pool = self._make_pool(is_bare=False)
        self._is_bare = False

    def _make_pool(self, *, is_bare: bool) -> WorkerPool:
        limits = Limits(wall_s=TEXT_S, memory_bytes=MEMORY_BYTES)
        return WorkerPool(files=self._files, limits=limits, packages=None if is_bare else PACKAGES)

    def describe(self) -> Described:
        found: Any = self.call("describe")
        return Described(dict(found["ends"]), found["num_words"])

    def has_template(self) -> bool:
        return bool(self.call("has_template"))

    def call(self, function: str, *arguments: object) -> object:
        """Raises `ValueError` if template or tokenizer fail, `TextsUnavailable`."""
        try:
            with working("texts", constant_s=LONGEST_CALL_S):
                answer: Any = self._pool.call(function, *arguments, deadline_s=TEXT_S)
        except CallFailed as error:
            if isinstance(error.outcome, Refused) and not self._is_bare:
                log.warning("no sandbox for the model's template and tokenizer, they get a bounded process: %s", error)
                self._is_bare, self._pool = True, self._make_pool(is_bare=True)
                return self.call(function, *arguments)
            if isinstance(error.outcome, Refused | Starved):
                raise TextsUnavailable(str(error)) from error
            raise ValueError(f"the model's chat template or tokenizer fails: {_last_line(error)}") from error
        if "refused" in answer:
            raise ValueError(answer["refused"])
        return answer["value"]

    def words(self) -> dict[str, int]:
        words: dict[str, int] = {}
        for first in range(0, self.describe().num_words, WORDS_A_CALL):
            part: Any = self.call("words", first, WORDS_A_CALL)
            words |= dict(part)
        return words

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The text of each token that follows others."""
        pieces: list[str] = []
        num_letters = 0
        for first in range(0, len(ids), WORDS_A_CALL):
            part: Any = self.call("pieces", list(ids[first : first + WORDS_A_CALL]))
            num_letters += sum(map(len, part))
            if num_letters > MOST_WORDS_LETTERS:
                raise ValueError(f"tokenizer.json: all tokens must have at most {MOST_WORDS_LETTERS} letters in all")
            pieces += part
        return pieces


def text_process(folder: Path, options: Mapping[str, Any]) -> TextProcess:
    """The process for these files and options: its start takes seconds."""
    files = [(folder / name).stat() for name in _FILES if (folder / name).is_file()]
    seen = tuple((file.st_ino, file.st_mtime_ns, file.st_size) for file in files)
    return _process_of(folder, json.dumps(dict(options), sort_keys=True), seen)


@lru_cache(maxsize=2)  # a policy and its teacher
def _process_of(folder: Path, options: str, seen: tuple[tuple[int, ...], ...]) -> TextProcess:
    return TextProcess(folder, json.loads(options))


def _read_files(folder: Path) -> dict[str, str]:
    files = {name: folder / name for name in _FILES if (folder / name).is_file()}
    for name, file in files.items():
        if file.stat().st_size > MOST_FILE_BYTES:
            raise ValueError(f"{name}: must have at most {MOST_FILE_BYTES >> 20} MiB, got {file.stat().st_size} bytes")
    try:
        return {name: file.read_text(encoding="utf-8") for name, file in files.items()}
    except UnicodeDecodeError as error:
        raise ValueError(f"{folder.name}: its JSON files and template must be UTF-8: {error}") from error


def _last_line(error: CallFailed) -> str:
    return (str(error).strip().splitlines() or ["no reason"])[-1]
