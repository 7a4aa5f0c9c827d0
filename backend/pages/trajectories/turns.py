"""The response of a trajectory as messages, with the tokens of each.

Invariants:
- each token is in one message: in the one in which it starts, else in the one before;
- matches are marked in tokens and texts alike;
- a message without tokens has its text; one with part of its tokens has the rest of the text, or all of it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from backend.pages.trajectories.sought import NOTHING, Pieces, Sought
from backend.pages.trajectories.tokens import Token
from engine.spec.facts import TrajectorySample, Turn

LONG_ARGUMENTS: Final = 300
"""Characters of arguments shown unfolded; longer ones are folded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownTurn:
    number: int
    """From 1."""
    turn: Turn
    heading: str
    tokens: Sequence[Token] = ()
    rest: str = ""
    """The text after its tokens."""
    is_text_apart: bool = False
    """Its tokens are cut and the remaining text cannot be determined: `rest` is the whole text."""
    sought: Sought = NOTHING

    @property
    def took(self) -> str:
        seconds = self.turn.seconds
        return "" if seconds is None else f"{1_000 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"

    @property
    def rest_pieces(self) -> Pieces:
        return self.sought.pieces(self.rest)

    @property
    def place(self) -> str:
        """The anchor of its first match; empty: no match."""
        hit = next((token for token in self.tokens if token.is_hit), None)
        texts = (self.rest, self.turn.arguments, self.turn.error)
        if hit is not None:
            return f"token-{hit.at}"
        return f"turn-{self.number}" if any(map(self.sought.spans, texts)) else ""

    @property
    def folds_arguments(self) -> bool:
        return len(self.turn.arguments) > LONG_ARGUMENTS


def turns_of(sample: TrajectorySample, tokens: Sequence[Token] = (), sought: Sought = NOTHING) -> Sequence[ShownTurn]:
    turns = sample.turns or [
        Turn(author="model", text=sample.response, first_token=0, num_tokens=sample.num_tokens),
    ]
    return list(_shown(turns, tokens, sought))


def _shown(turns: Sequence[Turn], tokens: Sequence[Token], sought: Sought) -> Iterator[ShownTurn]:
    begins = 0
    for number, turn in enumerate(turns, start=1):
        ends = max(begins, turns[number].first_token) if number < len(turns) else len(tokens)
        own, begins = tokens[begins:ends], ends
        rest, is_apart = _rest_of(turn, own, is_cut=len(own) < turn.num_tokens)
        yield ShownTurn(
            number=number,
            turn=turn,
            heading=_heading(turn),
            tokens=_marked(own, sought),
            rest=rest,
            is_text_apart=is_apart,
            sought=sought,
        )


def _marked(tokens: Sequence[Token], sought: Sought) -> Sequence[Token]:
    """Marks the tokens that are part of a match, which may span several tokens."""
    spans = sought.spans("".join(each.text for each in tokens))
    if not spans:
        return tokens
    marked, at = list[Token](), 0
    for token in tokens:
        end = at + len(token.text)
        is_hit = any(begin < end and at < stop for begin, stop in spans)
        marked.append(replace(token, is_hit=True) if is_hit else token)
        at = end
    return marked


def _rest_of(turn: Turn, own: Sequence[Token], *, is_cut: bool) -> tuple[str, bool]:
    if not own:
        return turn.text, False
    if not is_cut:
        return "", False
    written = "".join(each.text for each in own)
    return (turn.text[len(written) :], False) if turn.text.startswith(written) else (turn.text, True)


def _heading(turn: Turn) -> str:
    if turn.author == "model":
        return f"Model, calling {turn.tool}" if turn.tool else "Model"
    return f"Answer of {turn.tool}" if turn.tool else "Environment"
