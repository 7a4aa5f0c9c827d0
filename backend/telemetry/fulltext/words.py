"""The words of a text, the same for who writes and for who asks.

Not Postgres's own parser: that takes `a/b` for a file and `-1` for a number, and in a database without a locale (as
`make up` makes it) forgets every letter beyond ASCII.

Invariants:
- a word is letters, digits and `_`, upper and lower case alike; of scripts without spaces each sign is a word;
- what is kept of a text is its words in their order, between blanks;
"""

import re
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

LONGEST_WORD: Final = 60
"""Longer ones count by their beginning."""
BETWEEN_TEXTS: Final = "."
"""Stands where a word would, so that no phrase goes from one text into the next."""
# Hiragana and katakana, Han, Hangul.
_SIGNS: Final = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uac00-\ud7a3"
_WORD: Final = re.compile(rf"[{_SIGNS}]|[^\W{_SIGNS}]+")


class Word(NamedTuple):
    said: str
    """As it is compared."""
    start: int
    end: int


def words_of(text: str) -> Iterator[Word]:
    for found in _WORD.finditer(text):
        yield Word(found[0].casefold()[:LONGEST_WORD], found.start(), found.end())


def spelled(words: Iterable[str]) -> str:
    """As they stand among the kept ones."""
    return f" {' '.join(words)} "


def kept_words(texts: Iterable[str], marks: Iterable[str]) -> str:
    """All words of some texts, in their order. Marks are no words of a text: each has a colon."""
    kept = [*marks, BETWEEN_TEXTS]
    for text in texts:
        kept += [found.casefold()[:LONGEST_WORD] for found in _WORD.findall(text)]
        kept.append(BETWEEN_TEXTS)
    return " ".join(kept)
