"""What becomes of samples, in plain words.

Invariant: an end or an outcome that is not in these lists is shown as it came, never hidden: engines may be newer.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from backend.pages.words import plain

WITHOUT_REWARD: Final = frozenset({"timeout", "error"})
"""Outcomes of samples that have none: their 0 is no reward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    word: str
    """As the engine says it."""
    title: str
    about: str


_ENDS: Final[Mapping[str, tuple[str, str]]] = {
    "trained": ("trained on", "Went into a batch, and the weights learned from it."),
    "filtered": ("filtered out", "Whole and rewarded, but its group has nothing to teach, so no batch took it."),
    "dropped_stale": ("dropped as stale", "Written by weights that were too old when the trainer could have taken it."),
    "failed": ("failed", "No answer with a reward came of it, however often it was tried."),
    "open": ("under way", "Being written or rewarded, or waiting for its group or for the trainer."),
    "rolled_back": (
        "trained on, then lost",
        "The trainer died before these weights were saved. They were asked again, so they count above as well.",
    ),
}
_OUTCOMES: Final[Mapping[str, tuple[str, str]]] = {
    "rewarded": ("rewarded", "The environment gave a reward."),
    "cut": ("cut off", "It reached the longest length that is allowed."),
    "untrusted": ("reward not trusted", "The environment doubts its own reward, and nothing is learned from it."),
    "timeout": ("timed out", "The environment gave no reward in time."),
    "error": ("error", "The environment gave no reward, because it failed."),
}
ENDS: Final = tuple(word for word in _ENDS if word not in {"open", "rolled_back"})
"""That a sample can have."""
OUTCOMES: Final = tuple(_OUTCOMES)


def meaning_of_end(word: str) -> Meaning:
    return _meaning(word, _ENDS)


def meaning_of_outcome(word: str) -> Meaning:
    return _meaning(word, _OUTCOMES)


def _meaning(word: str, known: Mapping[str, tuple[str, str]]) -> Meaning:
    title, about = known.get(word, (plain(word, {}), ""))
    return Meaning(word=word, title=title, about=about)
