"""Labels and descriptions of the ends and outcomes of samples.

Invariant: an unknown end or outcome is shown as is, never hidden: engines may be newer.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from backend.pages.words import plain

WITHOUT_REWARD: Final = frozenset({"timeout", "error"})
"""Outcomes of samples without a reward: their 0 is not a reward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    word: str
    """The engine's value."""
    title: str
    about: str


_ENDS: Final[Mapping[str, tuple[str, str]]] = {
    "trained": ("trained on", "Used in a batch to update the weights."),
    "filtered": ("filtered out", "Complete and rewarded, but its group has no training signal."),
    "dropped_stale": ("dropped as stale", "The weights that wrote it were too old when the trainer was ready for it."),
    "failed": ("failed", "No rewarded answer after all tries."),
    "open": ("in progress", "Being written or rewarded, or waiting for its group or for the trainer."),
    "replaced": (
        "failed, then replaced",
        "Its tool, grader or environment failed. Another sample was started in its place and counts above.",
    ),
    "rolled_back": (
        "trained on, then lost",
        "The trainer failed before these weights were saved. The samples were requested again and also count above.",
    ),
}
_OUTCOMES: Final[Mapping[str, tuple[str, str]]] = {
    "rewarded": ("rewarded", "The environment gave a reward."),
    "cut": ("cut off", "The answer reached the maximum length."),
    "untrusted": (
        "reward not trusted",
        "The environment does not trust its own reward, so the sample is not trained on.",
    ),
    "timeout": ("timed out", "The environment gave no reward in time."),
    "error": ("error", "The environment failed and gave no reward."),
}
REQUESTED_AGAIN: Final = ("replaced", "rolled_back")
"""Counts of a ledger that are no ends: these samples also count under the end of those requested for them."""
ENDS: Final = tuple(word for word in _ENDS if word not in {"open", *REQUESTED_AGAIN})
"""All ends of samples."""
OUTCOMES: Final = tuple(_OUTCOMES)


def meaning_of_end(word: str) -> Meaning:
    return _meaning(word, _ENDS)


def meaning_of_outcome(word: str) -> Meaning:
    return _meaning(word, _OUTCOMES)


def _meaning(word: str, known: Mapping[str, tuple[str, str]]) -> Meaning:
    title, about = known.get(word, (plain(word, {}), ""))
    return Meaning(word=word, title=title, about=about)
