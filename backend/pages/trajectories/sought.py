"""A search text and its matches in a text, by the rules of the search over all trajectories.

Invariant: the pieces of a text, put together, are the text.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from backend.errors import Refusal
from backend.telemetry.fulltext.question import Question, Term, question_of
from backend.telemetry.fulltext.words import words_of

Pieces = Sequence[tuple[str, bool]]
"""Pieces of a text, each with whether it matches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sought:
    text: str = ""
    """As typed; empty: no search."""
    question: Question | None = None
    refusal: str = ""
    """Why the typed text cannot be searched for."""

    @classmethod
    def of(cls, typed: str) -> "Sought":
        if not typed:
            return cls()
        try:
            return cls(text=typed, question=question_of(typed))
        except Refusal as refusal:
            return cls(text=typed, refusal=" ".join(refusal.sentences))

    def spans(self, text: str) -> Sequence[tuple[int, int]]:
        """The matches of all words and phrases, in order and without overlaps."""
        if self.question is None:
            return []
        words = list(words_of(text))
        said, spans, at = [word.folded for word in words], list[tuple[int, int]](), 0
        while at < len(words):
            lengths = [len(term.words) for term in self.question.wanted if _is_at(term, said, at)]
            if lengths:
                spans.append((words[at].start, words[at + max(lengths) - 1].end))
            at += max(lengths, default=1)
        return spans

    def pieces(self, text: str) -> Pieces:
        pieces, at = list[tuple[str, bool]](), 0
        for start, end in self.spans(text):
            pieces += [(text[at:start], False), (text[start:end], True)]
            at = end
        return [(piece, is_hit) for piece, is_hit in [*pieces, (text[at:], False)] if piece]


def _is_at(term: Term, said: Sequence[str], at: int) -> bool:
    *before, last = said[at : at + len(term.words)]
    if list(before) != list(term.words[:-1]):
        return False  # or the text ends before
    return last.startswith(term.words[-1]) if term.is_beginning else last == term.words[-1]


NOTHING: Final = Sought()
