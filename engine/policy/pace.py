"""Pace: how long a piece of work may take, from its size and from how long such work took so far.

    what a loop is at:  loop ──begin──▶ step ──begin──▶ micro-batch ──end──▶ step ──end──▶ loop
                        each arrow is a sign of life; a piece ends or a smaller one begins inside it

Invariants:
- work that grows with the job has no constant bound: before it was ever measured, its size at the slowest honest rate
  counts, and afterwards its own pace;
- a pace counts finished pieces, each without the smaller ones inside it, and is of one process: a part that is started
  again may be somewhere else.
"""

from dataclasses import dataclass, field
from typing import Final

# Of whatever little, on a disk to which others write gigabytes.
SLOWEST_SYNC_S: Final = 300.0

LOOP: Final = "loop"


def flops_of_forward(num_weights: int, num_tokens: int) -> float:
    """Without attention, which is less as long as a context is shorter than some ten widths of the model."""
    return 2.0 * num_weights * num_tokens


def flops_of_sequence(num_weights: int, attention_width: int, length: int) -> float:
    """Of a forward pass, with attention: every token sees those before it, in every layer's width of heads."""
    return flops_of_forward(num_weights, length) + 2.0 * attention_width * length**2


def flops_of_training(num_weights: int, num_tokens: int) -> float:
    """Forward and backward, the forward pass perhaps twice."""
    return 4.0 * flops_of_forward(num_weights, num_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The pace of all pieces of one kind that have ended."""

    spent_s: float = 0.0
    expected_s: float = 0.0
    """By their estimates."""

    @property
    def of_estimate(self) -> float:
        """The share of its estimate that a piece takes."""
        return self.spent_s / self.expected_s if self.expected_s > 0 else 0.0

    def after(self, *, spent_s: float, expected_s: float) -> "Pace":
        return Pace(spent_s=self.spent_s + spent_s, expected_s=self.expected_s + expected_s)


UNMEASURED: Final = Pace()


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """The work that a loop is at, as its heartbeat tells it."""

    what: str = LOOP
    serial: int = 0
    """Grows with every sign of life."""
    expects_s: float = 0.0
    """An estimate; 0: it is nothing that takes long."""
    constant_s: float = 0.0
    """Beside it: what no job makes longer, and no pace shorter."""
    pace: Pace = UNMEASURED
    """Of this kind of piece so far."""


TURNING: Final = Piece()


@dataclass(slots=True)
class _Begun:
    what: str
    expects_s: float
    constant_s: float = 0.0
    spent_s: float = 0.0


@dataclass(slots=True)
class Pulse:
    """A keeper of the work that one loop is at."""

    now: float
    _begun: list[_Begun] = field(default_factory=lambda: [_Begun(LOOP, 0.0)], init=False)
    _paces: dict[str, Pace] = field(default_factory=dict, init=False)
    _serial: int = field(default=0, init=False)

    def sign(self, now: float) -> None:
        self._serial += 1
        self._begun[-1].spent_s += now - self.now
        self.now = now

    def begin(self, what: str, expects_s: float, now: float, *, constant_s: float = 0.0) -> None:
        self.sign(now)
        self._begun.append(_Begun(what, expects_s, constant_s))

    def end(self, now: float) -> None:
        """Of what was begun last."""
        self.sign(now)
        ended = self._begun.pop()
        before = self._paces.get(ended.what, UNMEASURED)
        self._paces[ended.what] = before.after(spent_s=ended.spent_s, expected_s=ended.expects_s)

    @property
    def piece(self) -> Piece:
        begun = self._begun[-1]
        pace = self._paces.get(begun.what, UNMEASURED)
        return Piece(
            what=begun.what,
            serial=self._serial,
            expects_s=begun.expects_s,
            constant_s=begun.constant_s,
            pace=pace,
        )
