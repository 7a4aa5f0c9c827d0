"""A search query as typed: required words, "phrases in quotes", -excluded words, prefix*.

Invariant: whatever is typed, the query sent to Postgres contains only words, each quoted.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from backend.errors import FieldError, Invalid
from backend.telemetry.fulltext.words import spelled, words_of

LONGEST: Final = 200
MOST_WORDS: Final = 20
_PIECE: Final = re.compile(r'(-?)(?:"([^"]*)"?|(\S+))')


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    words: Sequence[str]
    """Consecutive words."""
    is_unwanted: bool = False
    is_beginning: bool = False
    """The last word is a prefix."""

    @property
    def is_phrase(self) -> bool:
        return len(self.words) > 1

    def in_index(self) -> str:
        """The Postgres query for its words, in any order."""
        words = [f"'{word}'" for word in self.words]
        words[-1] += ":*" if self.is_beginning else ""
        return f"({' & '.join(words)})"

    def in_order(self) -> str:
        """The text to look for in the stored words."""
        return spelled(self.words).rstrip() if self.is_beginning else spelled(self.words)

    def matches(self, words: Sequence[str]) -> bool:
        """True if these words match the term exactly."""
        *before, last = self.words
        if len(words) != len(self.words) or list(words[:-1]) != before:
            return False
        return words[-1].startswith(last) if self.is_beginning else words[-1] == last


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    terms: Sequence[Term]

    @property
    def wanted(self) -> Sequence[Term]:
        return [term for term in self.terms if not term.is_unwanted]

    def in_index(self, mark: str) -> str:
        """The Postgres query among rows with the mark. Phrases are queried by their words; excluded phrases are not."""
        wanted = [term.in_index() for term in self.wanted]
        unwanted = [f"!{term.in_index()}" for term in self.terms if term.is_unwanted and not term.is_phrase]
        return " & ".join([f"'{mark}'", *wanted, *unwanted])

    def phrases(self, *, are_unwanted: bool) -> Sequence[str]:
        """Texts to look for in the stored words."""
        return [term.in_order() for term in self.terms if term.is_phrase and term.is_unwanted is are_unwanted]


def question_of(typed: str) -> Question:
    """Parses a query. Raises `Invalid`."""
    terms = [term for sign, phrase, piece in _PIECE.findall(typed) if (term := _term(sign, phrase, piece)) is not None]
    question = Question(terms=terms)
    if not question.wanted:
        raise _refused("words", "write at least one word to search for")
    if sum(len(term.words) for term in terms) > MOST_WORDS:
        raise _refused("too_many", f"write at most {MOST_WORDS} words")
    return question


def _term(sign: str, phrase: str, piece: str) -> Term | None:
    words = [word.folded for word in words_of(phrase or piece)]
    if not words:
        return None
    return Term(words=words, is_unwanted=bool(sign), is_beginning=piece.endswith("*"))


def _refused(code: str, message: str) -> Invalid:
    return Invalid(errors=[FieldError(pointer="/query/q", code=code, message=message)])
