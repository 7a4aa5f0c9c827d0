"""The tokens of a trajectory for display: the text of each, and its shade in each of four colourings.

Invariants:
- every token of the trace is drawn once, in order;
- only the model's tokens are coloured: text of the environment has no log-prob;
- a legend shows each colour's meaning, bounds and number of tokens.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from backend.pages.templatetags.laminar import change
from engine.spec.facts import TokenTrace

T = TypeVar("T")

NUM_VERSION_LOOKS: Final = 5
"""The sixth version has the colour of the first; the legend and each token's details show the number."""
NUM_DIGITS: Final = 6
"""Decimals of a log-prob in the page. Gaps use the unrounded values, since they may be smaller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Colouring:
    slug: str
    """The query parameter."""
    title: str
    about: str


LIKELY: Final = Colouring(
    slug="likely",
    title="Probability",
    about="The log-prob of each token under the weights that wrote it. The stronger the colour, the less likely.",
)
ADVANTAGE: Final = Colouring(
    slug="advantage",
    title="Advantage",
    about="How much better than expected this answer was, which sets the direction and size of the update. All of the "
    "model's tokens have the advantage of their answer.",
)
GAP: Final = Colouring(
    slug="gap",
    title="Trainer − rollout",
    about="The trainer's log-prob under the weights at the start of its step, minus that of the rollout that wrote "
    "the token.",
)
VERSION: Final = Colouring(
    slug="version",
    title="Version",
    about="The version of the weights that wrote each token. Several versions mean that new weights arrived meanwhile.",
)
COLOURINGS: Final = (LIKELY, ADVANTAGE, GAP, VERSION)

_CHANCES: Final = (
    (0.9, "l0", "90 % or more (log-prob from −0.11 up)"),
    (0.5, "l1", "50 to 90 % (from −0.69)"),
    (0.1, "l2", "10 to 50 % (from −2.3)"),
    (0.01, "l3", "1 to 10 % (from −4.6)"),
    (0.0, "l4", "less than 1 %"),
)
_GAPS: Final = (
    (-math.inf, "g0", "the trainer finds it less than 0.9 times as likely (below −0.105)"),
    (math.log(0.9), "g1", "0.9 to 0.99 times (−0.105 to −0.01)"),
    (math.log(0.99), "g2", "as likely, to 1 % (−0.01 to 0.01)"),
    (-math.log(0.99), "g3", "1.01 to 1.11 times (0.01 to 0.105)"),
    (-math.log(0.9), "g4", "more than 1.11 times (above 0.105)"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One line of a legend."""

    look: str
    """The CSS class of its tokens."""
    label: str
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Legend:
    colouring: Colouring
    keys: Sequence[Key]
    """Empty: not reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    at: int
    text: str
    looks: str
    """Its CSS classes, one per colouring."""
    is_hit: bool = False
    """Whether the token is part of a match."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    shown: Sequence[Token]
    legends: Sequence[Legend]
    numbers: Mapping[str, Any]
    """The numbers that the page's script shows for each token, by position."""
    num_written: int
    widest: Token | None = None
    """The token with the largest gap between trainer and rollout, `widest_gap`."""
    widest_gap: float = 0.0


def tokens_of(trace: TokenTrace | None, advantage: float) -> Tokens | None:
    """None: the texts of the tokens were not reported."""
    if trace is None or not trace.texts:
        return None
    trace = _even(trace)
    gaps = [ours - theirs for ours, theirs in zip(trace.trainer_logprobs, trace.logprobs, strict=False)]
    versions = list(dict.fromkeys(_of_written(trace, trace.versions)))
    looks = {
        LIKELY.slug: [_look_of_chance(each) for each in trace.logprobs],
        ADVANTAGE.slug: [_look_of_advantage(advantage)] * len(trace.texts),
        GAP.slug: [_look_of_gap(each) for each in gaps],
        VERSION.slug: [_look_of_version(versions, each) for each in trace.versions],
    }
    shown = [
        Token(
            at=at,
            text=text,
            looks=" ".join(each[at] for each in looks.values() if each) if trace.written[at] else "env",
        )
        for at, text in enumerate(trace.texts)
    ]
    written = [at for at, is_written in enumerate(trace.written) if is_written]
    widest = max(written, key=lambda at: abs(gaps[at]), default=None) if gaps else None
    return Tokens(
        shown=shown,
        legends=list(_legends(trace, looks, versions, advantage)),
        numbers={
            "logprobs": [round(each, NUM_DIGITS) for each in trace.logprobs],
            "gaps": [float(f"{each:.3g}") for each in gaps],
            "versions": trace.versions,
            "written": [int(each) for each in trace.written],
            "advantage": advantage,
        },
        num_written=len(written),
        widest=None if widest is None else shown[widest],
        widest_gap=0.0 if widest is None else gaps[widest],
    )


def _even(trace: TokenTrace) -> TokenTrace:
    """Cuts the lists to equal length: an engine may send lists of different lengths."""
    length = min(len(trace.texts), len(trace.logprobs), len(trace.versions), len(trace.written))
    cut = {name: value[:length] for name, value in trace.model_dump().items()}
    if len(cut["trainer_logprobs"]) < length:
        cut["trainer_logprobs"] = []
    return trace.model_copy(update=cut)


def _legends(
    trace: TokenTrace, looks: Mapping[str, Sequence[str]], versions: Sequence[int], advantage: float
) -> Iterator[Legend]:
    labels: Mapping[str, Sequence[tuple[str, str]]] = {
        LIKELY.slug: [(look, label) for _, look, label in _CHANCES],
        ADVANTAGE.slug: [(_look_of_advantage(advantage), f"{change(advantage)}, for the whole answer")],
        GAP.slug: [(look, label) for _, look, label in _GAPS],
    }
    for colouring in COLOURINGS:
        counts = Counter(_of_written(trace, looks[colouring.slug]))
        keys = [Key(look=look, label=label, num_tokens=counts[look]) for look, label in labels.get(colouring.slug, ())]
        if colouring is VERSION:
            num_by_version = Counter(_of_written(trace, trace.versions))
            keys = [
                Key(look=_look_of_version(versions, each), label=f"version {each}", num_tokens=num_by_version[each])
                for each in versions
            ]
        yield Legend(colouring=colouring, keys=keys if looks[colouring.slug] else ())


def _of_written(trace: TokenTrace, values: Sequence[T]) -> list[T]:
    return [value for value, is_written in zip(values, trace.written, strict=False) if is_written]


def _look_of_chance(logprob: float) -> str:
    return next((look for least, look, _ in _CHANCES if math.exp(min(0.0, logprob)) >= least), _CHANCES[-1][1])


def _look_of_gap(gap: float) -> str:
    return next((look for least, look, _ in reversed(_GAPS) if gap >= least), _GAPS[0][1])


def _look_of_advantage(advantage: float) -> str:
    """Advantages are about 1 in size."""
    size = 0 if abs(advantage) < 0.01 else 1 if abs(advantage) < 1 else 2
    return f"a{2 + (size if advantage > 0 else -size)}"


def _look_of_version(versions: Sequence[int], version: int) -> str:
    return f"v{versions.index(version) % NUM_VERSION_LOOKS}" if version in versions else ""
