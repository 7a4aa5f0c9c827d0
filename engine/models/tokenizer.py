"""Text to token ids and back, by a folder's tokenizer.json. Does not import `transformers`, which takes seconds.

Invariant: `decode` drops only end tokens, so that a grader sees every other token of the model.
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
        """Maps every token to its id."""
        return dict(self._raw.get_vocab(with_added_tokens=True))

    def encode(self, text: str, *, goes_on: bool = False) -> list[int]:
        """`goes_on`: the text continues another, so no begin-of-text token is added."""
        return list(self._raw.encode(text, add_special_tokens=not goes_on).ids)

    def end_of(self, ids: Sequence[int]) -> str:
        """The text of the end token that closes an answer; empty if there is none."""
        end_ids = [token for token in ids[-1:] if token in self.eos_ids]
        return str(self._raw.decode(end_ids, skip_special_tokens=False))

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The text of each token that follows others; U+FFFD for each part of a letter, the name for an end token."""
        start = len(self._raw.decode(self._anchor, skip_special_tokens=False))
        return [str(self._raw.decode([*self._anchor, token], skip_special_tokens=False))[start:] for token in ids]

    def following(self, before: Sequence[int], ids: Sequence[int]) -> str:
        """The text of `ids` after `before`."""
        return self.decode([*before, *ids])[len(self.decode(before)) :]

    @cached_property
    def _anchor(self) -> list[int]:
        """A token to put before others: some decoders drop the white space at the beginning of a text."""
        return self.encode("a", goes_on=True)[-1:]

    def decode(self, ids: Sequence[int]) -> str:
        kept = [token for token in ids if token not in self.eos_ids]
        return str(self._raw.decode(kept, skip_special_tokens=False))


def read_eos_ids(folder: Path) -> tuple[int, ...]:
    """Every token that ends a response; generation_config.json takes precedence, as in `transformers`."""
    for name in ("generation_config.json", "config.json"):
        file = folder / name
        settings: dict[str, Any] = json.loads(file.read_text()) if file.is_file() else {}
        eos = settings.get("eos_token_id")
        if eos is not None:
            return tuple(eos) if isinstance(eos, list) else (int(eos),)
    raise ValueError(f"{folder}: generation_config.json or config.json must name an eos_token_id")
