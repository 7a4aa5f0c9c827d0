"""Text to token ids and back, from a folder's tokenizer.json. `transformers` is not imported: it costs seconds.

Invariants:
- `decode` drops end tokens and nothing else: a grader sees every other token that the model said.
"""

import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from tokenizers import Tokenizer as RawTokenizer


class Tokenizer:
    def __init__(self, raw: RawTokenizer, eos_ids: tuple[int, ...]) -> None:
        self._raw = raw
        self.eos_ids = eos_ids

    @classmethod
    def from_folder(cls, folder: Path) -> Self:
        file = folder / "tokenizer.json"
        if not file.is_file():
            raise ValueError(f"{folder}: a model needs a tokenizer.json")
        return cls(RawTokenizer.from_file(str(file)), read_eos_ids(folder))

    @property
    def eos_id(self) -> int:
        return self.eos_ids[0]

    @property
    def vocab_size(self) -> int:
        return int(self._raw.get_vocab_size(with_added_tokens=True))

    def words(self) -> dict[str, int]:
        """Every token and its id."""
        return dict(self._raw.get_vocab(with_added_tokens=True))

    def encode(self, text: str, *, goes_on: bool = False) -> list[int]:
        """`goes_on`: something was said before it, so that no token that begins a text is put in front of it."""
        return list(self._raw.encode(text, add_special_tokens=not goes_on).ids)

    def encode_rendered(self, text: str) -> list[int]:
        """Of a chat template, which writes every token that it wants, also the one that begins a text."""
        return self.encode(text, goes_on=True)

    def end_of(self, ids: Sequence[int]) -> str:
        """The text of the token that ended an answer; nothing where none did."""
        ended = [token for token in ids[-1:] if token in self.eos_ids]
        return str(self._raw.decode(ended, skip_special_tokens=False))

    def piece(self, token: int) -> str:
        """The text of one token behind others; U+FFFD for each part of a letter. Of an end token its name."""
        before = self._anchor
        text: str = self._raw.decode([*before, token], skip_special_tokens=False)
        return text[len(self._raw.decode(before, skip_special_tokens=False)) :]

    @cached_property
    def _anchor(self) -> list[int]:
        """Some decoders drop the white space that a text begins with: that of a token is behind this one."""
        return self.encode("a", goes_on=True)[-1:]

    def decode(self, ids: Sequence[int]) -> str:
        kept = [token for token in ids if token not in self.eos_ids]
        return str(self._raw.decode(kept, skip_special_tokens=False))


def read_eos_ids(folder: Path) -> tuple[int, ...]:
    """Every token that ends a response; generation_config.json has the last word, as in `transformers`."""
    for name in ("generation_config.json", "config.json"):
        file = folder / name
        settings: dict[str, Any] = json.loads(file.read_text()) if file.is_file() else {}
        eos = settings.get("eos_token_id")
        if eos is not None:
            return tuple(eos) if isinstance(eos, list) else (int(eos),)
    raise ValueError(f"{folder}: generation_config.json or config.json must name an eos_token_id")
