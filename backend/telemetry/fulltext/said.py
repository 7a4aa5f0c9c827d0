"""What of a trajectory is searched, and the passage of it that answers a question.

Invariant: at most `MOST_SEARCHED` characters of one trajectory are searched, its prompt's first; the beginning of each.
"""

import json
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from backend.telemetry.compression import compress, decompress
from backend.telemetry.fulltext.question import Question, Term
from backend.telemetry.fulltext.words import Word, words_of
from engine.spec.facts import TrajectorySample

MOST_SEARCHED: Final = 100_000
MOST_OF_PROMPT: Final = 20_000
"""So that a long prompt leaves room for what the model made of it."""
AROUND: Final = 80
"""Characters shown before and after what was found."""


class Said(NamedTuple):
    place: str
    """`prompt`, `response`, `remark` or `reason`; of a turn its `text`, `tool`, `arguments` or `error`."""
    turn: int | None
    text: str


class Passage(NamedTuple):
    place: str
    turn: int | None
    """Counted from 0; None: it is in no turn."""
    start: int
    """Of the match, in characters of that text."""
    before: str
    match: str
    after: str


def said_by(sample: TrajectorySample) -> Sequence[Said]:
    said, left = [], MOST_SEARCHED
    for each in _all_said_by(sample):
        text = each.text[: min(left, MOST_OF_PROMPT if each.place == "prompt" else left)]
        left -= len(text)
        if text:
            said.append(each._replace(text=text))
    return said


def kept(said: Sequence[Said]) -> bytes:
    return compress(json.dumps(said, ensure_ascii=False, separators=(",", ":")).encode())


def read_back(content: bytes | memoryview) -> Sequence[Said]:
    return [Said(*each) for each in json.loads(decompress(content))]


def passage_of(said: Sequence[Said], question: Question) -> Passage | None:
    """The first of the rarest kind: a term of several words before one of a single word."""
    for term in sorted(question.wanted, key=lambda term: -len(term.words)):
        for each in said:
            if (span := _span(each.text, term)) is not None:
                return _around(each, *span)
    return None


def _all_said_by(sample: TrajectorySample) -> Iterator[Said]:
    yield Said("prompt", None, sample.prompt)
    if not sample.turns:
        yield Said("response", None, sample.response)
    for number, turn in enumerate(sample.turns):
        for place in ("text", "tool", "arguments", "error"):
            yield Said(place, number, getattr(turn, place))
    yield Said("remark", None, sample.remark)
    yield Said("reason", None, sample.reason)


def _span(text: str, term: Term) -> tuple[int, int] | None:
    last: deque[Word] = deque(maxlen=len(term.words))
    for word in words_of(text):
        last.append(word)
        if term.is_said_by([each.said for each in last]):
            return last[0].start, word.end
    return None


def _around(each: Said, start: int, end: int) -> Passage:
    before, after = each.text[max(0, start - AROUND) : start], each.text[end : end + AROUND]
    return Passage(each.place, each.turn, start, before, each.text[start:end], after)
