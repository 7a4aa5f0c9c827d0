"""Memory needs, line by line: terms that are always there, and phases of which one at a time is.

Invariant: margins are separate. Counted terms can be proven; a margin covers what a spec cannot determine.
"""

from dataclasses import dataclass
from typing import Final

GB: Final = 10**9
"""As devices are sold: 80 GB is 80·10⁹."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    what: str
    num_bytes: int
    how: str = ""
    """The multiplication, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    what: str
    terms: tuple[Term, ...]

    @property
    def num_bytes(self) -> int:
        return total(self.terms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    of: str
    always: tuple[Term, ...]
    phases: tuple[Phase, ...] = ()
    margins: tuple[Term, ...] = ()

    @property
    def fullest(self) -> Phase | None:
        return max(self.phases, key=lambda phase: phase.num_bytes, default=None)

    @property
    def certain(self) -> int:
        """Whatever the batch is."""
        return total(self.always)

    @property
    def counted(self) -> int:
        """Without the margins."""
        return total(self.always) + (self.fullest.num_bytes if self.fullest else 0)

    @property
    def num_bytes(self) -> int:
        return self.counted + total(self.margins)

    @property
    def lines(self) -> list[str]:
        """The arithmetic, a line a term."""
        fullest = self.fullest
        lines = [_line(term) for term in self.always if term.num_bytes]
        if fullest is not None:
            lines += [f"  peak, {fullest.what}:", *(_line(term) for term in fullest.terms if term.num_bytes)]
        if self.margins:
            lines += ["  margins, not counted above:", *map(_line, self.margins)]
        return [f"{self.of}: {gigabytes(self.num_bytes)}", *lines]


def total(terms: tuple[Term, ...]) -> int:
    return sum(term.num_bytes for term in terms)


def in_words(num_weights: int) -> str:
    return f"{num_weights / 1e9:.2f} billion" if num_weights >= 1e7 else f"{num_weights / 1e6:.2f} million"


def gigabytes(num_bytes: int) -> str:
    return f"{num_bytes / GB:.1f} GB"


def share(num_bytes: int, num_devices: int) -> int:
    """Of one of so many, rounded up."""
    return -(-num_bytes // num_devices)


def _line(term: Term) -> str:
    how = f"   {term.how}" if term.how else ""
    return f"    {term.num_bytes / GB:>9.2f} GB  {term.what}{how}"
