"""Trajectories that match a search, newest step first, each with the matching passage.

Invariant: a response is bounded, and has the cursor of the next one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlencode

from backend.errors import Refusal
from backend.jobs.models import Job
from backend.pages.trajectories.asked import Asked
from backend.pages.trajectories.reading import ShownSample, shown_samples
from backend.telemetry.fulltext.finding import passages_of
from backend.telemetry.removal import refuse_if_trajectories_are_removed
from backend.telemetry.representations import PassageOut, TrajectoryOut
from backend.telemetry.trajectories.search import Wanted, search_trajectories

FOUND_A_TIME: Final = 20
_PLACES: Final = {
    "prompt": "in the question",
    "response": "in the answer",
    "remark": "in the environment's remark",
    "reason": "in the reason",
    "text": "in message {}",
    "tool": "in the tool’s name, message {}",
    "arguments": "in the arguments, message {}",
    "error": "in the error, message {}",
}
_FRAGMENTS: Final = {"prompt": "the-question", "response": "turn-1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchedSample:
    sample: ShownSample
    where: str = ""
    """Which of its texts matches; empty: no search text."""
    fragment: str = ""
    """The passage's anchor on the trajectory's page."""

    @property
    def passage(self) -> PassageOut | None:
        return self.sample.it.passage


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchPage:
    samples: Sequence[MatchedSample] = ()
    following: str = ""
    """The query string of the next page; empty: there is none."""
    is_first: bool = True
    refusal: str = ""
    """Why no search was made."""


def search_page(job: Job, asked: Asked, cursor: str) -> SearchPage:
    if asked.sought.refusal:
        return SearchPage(refusal=asked.sought.refusal)
    wanted = _wanted(asked)
    try:
        refuse_if_trajectories_are_removed(job)
        rows, following = search_trajectories(job, wanted, cursor=cursor or None, limit=FOUND_A_TIME)
    except Refusal as refusal:
        return SearchPage(refusal=" ".join(refusal.sentences))
    passages = {} if wanted.question is None else passages_of(rows, wanted.question)
    shown = shown_samples([TrajectoryOut.of(row, passages.get(row.pk)) for row in rows])
    return SearchPage(
        samples=[_found(each) for each in shown],
        following=urlencode(asked.parameters | {"from": following}) if following else "",
        is_first=not cursor,
    )


def _wanted(asked: Asked) -> Wanted:
    return Wanted(
        question=asked.sought.question,
        step=asked.step,
        version=asked.version,
        min_staleness=asked.min_staleness,
        outcome=asked.outcome or None,
        end=asked.end or None,
        min_reward=asked.min_reward,
        max_reward=asked.max_reward,
    )


def _found(sample: ShownSample) -> MatchedSample:
    passage = sample.it.passage
    if passage is None:
        return MatchedSample(sample=sample)
    number = None if passage.turn is None else passage.turn + 1
    return MatchedSample(
        sample=sample,
        where=_PLACES[passage.place].format(number),
        fragment=_FRAGMENTS.get(passage.place, "of-it") if number is None else f"turn-{number}",
    )
