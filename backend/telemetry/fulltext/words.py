"""Splits texts into words, identically for indexing and searching.

Not Postgres's own parser: that takes `a/b` for a file and `-1` for a number, and in a database without a locale (as
`make up` creates it) drops every letter beyond ASCII.

Invariants:
- a word is letters, digits and `_`, case-insensitive; in scripts without spaces each character is a word;
- the index stores a text as its words in order, separated by spaces.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

LONGEST_WORD: Final = 60
"""Longer words are cut to this length."""
BETWEEN_TEXTS: Final = "."
"""Takes the place of a word between texts, so that no phrase spans two texts."""
# Hiragana and katakana, Han, Hangul.
_SIGNS: Final = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uac00-\ud7a3"
_WORD: Final = re.compile(rf"[{_SIGNS}]|[^\W{_SIGNS}]+")


class Word(NamedTuple):
    folded: str
    """In the form that is compared."""
    start: int
    end: int


def words_of(text: str) -> Iterator[Word]:
    for match in _WORD.finditer(text):
        yield Word(match[0].casefold()[:LONGEST_WORD], match.start(), match.end())


def spelled(words: Iterable[str]) -> str:
    """In the form in which the index stores them."""
    return f" {' '.join(words)} "


def kept_words(texts: Iterable[str], marks: Iterable[str]) -> str:
    """All words of the texts, in order. Marks are never words of a text: each contains a colon."""
    kept = [*marks, BETWEEN_TEXTS]
    for text in texts:
        kept += [word.casefold()[:LONGEST_WORD] for word in _WORD.findall(text)]
        kept.append(BETWEEN_TEXTS)
    return " ".join(kept)
