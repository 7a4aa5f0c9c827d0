"""Progress: the piece of work that a loop is doing, and a counter that grows with every unit of it.

    loop ──begin──▶ step ──begin──▶ micro-batch ──layer, layer, …──▶ end ──▶ step ──end──▶ loop
                        each arrow and each layer is a sign of life; a piece ends or a smaller one begins inside it

Invariant: a unit takes seconds, whatever the size of the job: some megabytes, a tensor, a layer. So the time between
two signs of life has a constant limit (`recovery.Patience`), and no part estimates how long its work will take.
"""

from dataclasses import dataclass, field
from typing import Final

# Syncing a few bytes to a disk while other processes write gigabytes to it.
SLOWEST_SYNC_S: Final = 300.0
# One library call without visible progress: capturing many CUDA graphs, the first collective call of many ranks,
# pinning hundreds of gigabytes.
SLOWEST_OPAQUE_S: Final = 480.0

LOOP: Final = "loop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """The work that a loop is doing, as its heartbeat reports it."""

    what: str = LOOP
    serial: int = 0
    """Grows with every sign of life."""
    constant_s: float = 0.0
    """Added to the usual limit: a wait that shows no progress and whose length does not depend on the job."""


TURNING: Final = Piece()


@dataclass(frozen=True, slots=True)
class _Begun:
    what: str
    constant_s: float = 0.0
    is_opaque: bool = False


@dataclass(slots=True)
class Pulse:
    """Tracks the nested pieces of work of one loop."""

    _begun: list[_Begun] = field(default_factory=lambda: [_Begun(LOOP)], init=False)
    _serial: int = field(default=0, init=False)

    def advance(self, times: int = 1) -> None:
        self._serial += times

    def begin(self, what: str, *, constant_s: float = 0.0, is_opaque: bool = False) -> None:
        self.advance()
        self._begun.append(_Begun(what, constant_s, is_opaque))

    def end(self) -> None:
        """Ends the piece that began last."""
        self.advance()
        self._begun.pop()

    @property
    def is_opaque(self) -> bool:
        """The current piece gives no signs of life itself: `engine/process/opaque_work.py` detects progress from
        outside, and the limit is `SLOWEST_OPAQUE_S` longer."""
        return self._begun[-1].is_opaque

    @property
    def piece(self) -> Piece:
        current = self._begun[-1]
        constant_s = current.constant_s + (SLOWEST_OPAQUE_S if current.is_opaque else 0.0)
        return Piece(what=current.what, serial=self._serial, constant_s=constant_s)
