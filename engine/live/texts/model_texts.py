"""A model's tokenizer and template, wherever they run: in this process for the models that we ship, which cost a
microsecond and are ours, and in a bounded process for every other.

Invariant: both kinds give the same text and tokens.
"""

import logging
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from engine.inference.stop import Decoder
from engine.live.texts.text_process import TextProcess, text_process
from engine.models.chat import ChatTemplate, Message, Tool
from engine.models.loading import DEMO_FOLDER
from engine.models.tokenizer import Tokenizer

log = logging.getLogger(__name__)

_PARTIAL: Final = "�"  # the piece of a token that is a part of a character


class ModelTokenizer(Decoder, Protocol):
    @property
    def eos_ids(self) -> tuple[int, ...]: ...

    def encode(self, text: str, *, goes_on: bool = False) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...

    def end_of(self, ids: Sequence[int]) -> str: ...

    def pieces(self, ids: Sequence[int]) -> list[str]: ...


class ModelTemplate(Protocol):
    def rendered(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> str: ...


class ModelTexts(NamedTuple):
    tokenizer: ModelTokenizer
    template: ModelTemplate | None
    are_bounded: bool = False
    """In the bounded process: a call takes a fraction of a millisecond, and for a hostile text many seconds."""


def open_texts(folder: Path, *, by_template: bool = False, options: Mapping[str, Any] | None = None) -> ModelTexts:
    """`by_template`: with the folder's chat template, if there is one. Raises `ValueError`, `TextsUnavailable`."""
    if is_shipped(folder):
        own = ChatTemplate.of_folder(folder, options or {}) if by_template else None
        return ModelTexts(Tokenizer.from_folder(folder), own)
    process = text_process(folder, options or {})
    template = BoundedTemplate(process) if by_template and process.has_template() else None
    return ModelTexts(BoundedTokenizer(process, process.describe().ends), template, are_bounded=True)


def words_of(folder: Path) -> Mapping[str, int]:
    return Tokenizer.from_folder(folder).words() if is_shipped(folder) else text_process(folder, {}).words()


def is_shipped(folder: Path) -> bool:
    """True for the built-in model: its files are ours."""
    return folder.resolve() == DEMO_FOLDER


class BoundedTemplate:
    def __init__(self, process: TextProcess) -> None:
        self._process = process

    def rendered(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> str:
        plain = [dict(message) for message in messages], [dict(tool) for tool in tools]
        return str(self._process.call("rendered", *plain))


class BoundedTokenizer:
    def __init__(self, process: TextProcess, ends: Mapping[int, str]) -> None:
        self._process, self._ends = process, ends
        self._fails = False

    @property
    def eos_ids(self) -> tuple[int, ...]:
        return tuple(self._ends)

    def encode(self, text: str, *, goes_on: bool = False) -> list[int]:
        ids: Any = self._process.call("encode", text, goes_on)
        return list(ids)

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._process.call("decode", list(ids)))

    def end_of(self, ids: Sequence[int]) -> str:
        return self._ends.get(ids[-1], "") if ids else ""

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return self._process.pieces(ids)

    def following(self, before: Sequence[int], ids: Sequence[int]) -> str:
        """From the pieces of all tokens, read once: a call for each token would cost more than the token. Only a part
        of a character, and the beginning of an answer, need the decoder. A decoder that fails once gives no more text:
        each failure may take as long as a text may."""
        try:
            return "" if self._fails else self._read_following(before, ids)
        except ValueError as error:
            self._fails = True
            log.warning("stop strings are not found from now on: %s", error)
            return ""

    def _read_following(self, before: Sequence[int], ids: Sequence[int]) -> str:
        pieces = [self._pieces.get(token, _PARTIAL) for token in ids]
        if before and not any(_PARTIAL in piece for piece in pieces):
            return "".join(pieces)
        return self.decode([*before, *ids])[len(self.decode(before)) if before else 0 :]

    @cached_property
    def _pieces(self) -> dict[int, str]:
        ids = sorted(set(self._process.words().values()))
        return dict(zip(ids, self.pieces(ids), strict=True))
