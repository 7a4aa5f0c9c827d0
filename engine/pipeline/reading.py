"""Trajectories for people to read: how much of each is sent, within a budget of bytes a second.

    whole group      waits until the saved budget holds a fair share of its texts and tokens
    single sample    with as much as the budget holds

Invariants:
- pure: the choice depends on the trajectories and the seconds of the steps alone;
- over any period no more is sent than its seconds earn plus the burst;
- a cut is visible: a text ends with an ellipsis, a trace has fewer tokens than its trajectory, and every sample carries
  the size of its group.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from engine.pipeline.messages.to_driver import ReadTrajectory
from engine.pipeline.records import NO_BREAKS, NO_ROUTES, TrajectoryContent, Utterance
from engine.spec.facts import MAX_PARTS, MAX_TRACED, MAX_TURNS

MAX_LETTERS: Final = 20_000
"""Of a text. A fact's field may hold 100,000, but dozens of samples a step should stay cheap to ship."""
ELLIPSIS: Final = " …"
# As JSON: a token's id, both log-probs, version, mark, and the syntax around its text.
TOKEN_BYTES: Final = 48
SAMPLE_BYTES: Final = 600
TURN_BYTES: Final = 200
PART_BYTES: Final = 90
CALL_SHARE: Final = 10
"""Divides a text's letters for the arguments of one call, or its error: there may be many calls."""
LEAST_BYTES: Final = 1_000
"""Of a sample with text. A sample without text has fewer, and waits as long."""
_UNPRINTABLE: Final = bytes([*range(0x09), *range(0x0B, 0x20), 0x7F])


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    letters: int
    """Letters of each text."""
    tokens: int
    """Tokens with ids and log-probs."""
    turns: int


WHOLE: Final = Extent(letters=MAX_LETTERS, tokens=MAX_TRACED, turns=MAX_TURNS)
FAIR: Final = (
    WHOLE,
    Extent(letters=MAX_LETTERS, tokens=512, turns=MAX_TURNS),
    Extent(letters=4_000, tokens=256, turns=64),
)
SMALL: Final = (Extent(letters=1_000, tokens=64, turns=16), Extent(letters=300, tokens=16, turns=4))


class Allowance:
    """Token bucket in bytes: so many a second, saved up to a burst."""

    def __init__(self, *, bytes_per_s: float, burst: float) -> None:
        self._bytes_per_s, self._burst = bytes_per_s, burst
        self._left = burst

    def earn(self, seconds: float) -> None:
        self._left = min(self._burst, self._left + max(0.0, seconds) * self._bytes_per_s)

    def has_room_for(self, num_samples: int) -> bool:
        """False: not even the smallest samples would fit, so there is no need to try."""
        return self._left >= min(self._burst, LEAST_BYTES * num_samples)

    def group(self, reads: Sequence[ReadTrajectory]) -> list[ReadTrajectory]:
        """All samples or none. A group larger than the burst is sent once the burst is saved up, and runs into debt."""
        extents = (*FAIR, *SMALL) if self._left >= self._burst else FAIR
        for extent in extents:
            if (shortened := self._spend_within_budget(reads, extent)) is not None:
                return shortened
        return self._spend_on_credit(reads, SMALL[-1]) if self._left >= self._burst else []

    def one(self, read: ReadTrajectory, *, must: bool = False) -> ReadTrajectory | None:
        """`must`: sent on credit, while the debt is below the burst."""
        for extent in (*FAIR, *SMALL) if self.has_room_for(1) else ():
            if (shortened := self._spend_within_budget([read], extent)) is not None:
                return shortened[0]
        return self._spend_on_credit([read], SMALL[-1])[0] if must and self._left > -self._burst else None

    def _spend_within_budget(self, reads: Sequence[ReadTrajectory], extent: Extent) -> list[ReadTrajectory] | None:
        """None: the samples do not fit."""
        shortened, left = [], self._left
        if sum(_least_bytes_of(each, extent) for each in reads) > left:
            return None
        for each in reads:
            shortened.append(_shorten(each, extent))
            left -= num_bytes_of(shortened[-1])
            if left < 0:
                return None
        self._left = left
        return shortened

    def _spend_on_credit(self, reads: Sequence[ReadTrajectory], extent: Extent) -> list[ReadTrajectory]:
        shortened = [_shorten(each, extent) for each in reads]
        self._left -= sum(map(num_bytes_of, shortened))
        return shortened


def _least_bytes_of(read: ReadTrajectory, extent: Extent) -> int:
    """A cheap lower bound that scans no text."""
    content = read.trajectory.content
    if content is None:
        return SAMPLE_BYTES
    letters = sum(min(extent.letters, len(text)) for text in (content.prompt_text, content.response_text))
    return SAMPLE_BYTES + TOKEN_BYTES * min(extent.tokens, read.trajectory.num_tokens) + letters


def num_bytes_of(read: ReadTrajectory) -> int:
    """Upper bound of the sample's size in a fact."""
    content = read.trajectory.content
    if content is None:
        return SAMPLE_BYTES + _size(read.reason)
    num_tokens = min(MAX_TRACED, len(content.response_ids))
    texts = (content.prompt_text, content.response_text, content.remark, read.reason)
    of_tokens = _size(content.response_text) * min(1.0, 2 * num_tokens / max(1, read.trajectory.num_tokens))
    turns, of_turns = content.utterances, 0
    if turns:  # their texts repeat the response's text
        calls = (each for turn in turns for each in (turn.tool, turn.tool, turn.arguments, turn.error))
        of_turns = TURN_BYTES * len(turns) + _size(content.response_text) + _size("".join(calls))
    of_parts = PART_BYTES * len(content.parts)
    return SAMPLE_BYTES + TOKEN_BYTES * num_tokens + sum(map(_size, texts)) + round(of_tokens) + of_turns + of_parts


def _size(text: str) -> int:
    """As JSON, which escapes some letters as two bytes; unprintable letters become U+FFFD, of three bytes."""
    data = text.encode("utf-8", "surrogatepass")
    num_escaped = len(data) - len(data.translate(None, b'"\\\n\t'))
    num_unprintable = len(data) - len(data.translate(None, _UNPRINTABLE))
    return len(data) + num_escaped + 2 * num_unprintable


def _shorten(read: ReadTrajectory, extent: Extent) -> ReadTrajectory:
    trajectory = read.trajectory
    if trajectory.content is None:
        return read
    content = excerpt(trajectory.content, extent)
    return replace(read, trajectory=replace(trajectory, content=content), logprobs=read.logprobs.first(extent.tokens))


def excerpt(content: TrajectoryContent, extent: Extent) -> TrajectoryContent:
    """Drops fields that no page shows (the prompt's ids, routes)."""
    tokens, letters = extent.tokens, extent.letters
    return replace(
        content,
        prompt_ids=NO_BREAKS,
        response_ids=content.response_ids.first(tokens),
        logprobs=content.logprobs.first(tokens),
        written=content.written.first(tokens),
        routes=NO_ROUTES,
        breaks=NO_BREAKS,
        prompt_text=cut_to(content.prompt_text, letters),
        response_text=cut_to(content.response_text, letters),
        remark=cut_to(content.remark, letters),
        utterances=_cut_calls(content.utterances[: extent.turns], letters),
        parts=content.parts[:MAX_PARTS],
    )


def _cut_calls(utterances: Sequence[Utterance], letters: int) -> tuple[Utterance, ...]:
    """Limits all calls and errors together to the letters of one text."""
    cut, most = [], letters // CALL_SHARE
    for each in utterances:
        arguments, error = cut_to(each.arguments, min(most, letters)), cut_to(each.error, min(most, letters))
        letters = max(0, letters - len(arguments) - len(error))
        is_whole = len(arguments) == len(each.arguments) and len(error) == len(each.error)
        cut.append(each if is_whole else replace(each, arguments=arguments, error=error))
    return tuple(cut)


def cut_to(text: str, letters: int) -> str:
    return text if len(text) <= letters else text[: max(0, letters - len(ELLIPSIS))] + ELLIPSIS
