"""The search for a stop string while an answer grows, token by token.

A token may be a part of a character, and its text may depend on the token before it. So each step decodes only the few
tokens since the last complete character, and not the whole answer.

Invariants:
- the first token whose text completes a stop string is detected, wherever the tokens' borders are;
- the work of a step does not grow with the answer.
"""

from collections.abc import Sequence
from typing import Final, Protocol

_PARTIAL: Final = "�"  # the decoding of bytes that are no complete character yet
_MAX_PENDING: Final = 16  # so many tokens without a complete character are not parts of one


class Decoder(Protocol):
    def following(self, before: Sequence[int], ids: Sequence[int]) -> str:
        """The text of `ids` after `before`. Never raises for tokens of the model."""
        ...


class StopWatcher:
    def __init__(self, tokenizer: Decoder, stop: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._stop = tuple(stop)
        self._reach = max(map(len, stop)) - 1
        self._before: list[int] = []  # searched tokens, on which the text of the next ones may depend
        self._pending: list[int] = []
        self._tail = ""

    def completes(self, token: int) -> bool:
        """True if this token, the next of the answer, completes a stop string."""
        self._pending.append(token)
        text = self._tail + self._tokenizer.following(self._before, self._pending)
        if not text.endswith(_PARTIAL) or len(self._pending) >= _MAX_PENDING:
            self._tail = text[-self._reach :] if self._reach else ""
            self._before, self._pending = self._pending, []
        return any(each in text for each in self._stop)
