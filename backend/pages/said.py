"""Long texts that parts of a job said: each with the line that says what happened, and none of it twice.

A traceback comes with the job's message, with the fault, with log lines of several parts and with the end of what the
driver printed. It is shown where it came first; after that only what is new is.
"""

from dataclasses import dataclass, field
from typing import Final

_HEADER: Final = "Traceback (most recent call last):"
_LEAST_ENDING: Final = 16
"""Letters. A printed line ends with the message that it logs; shorter ones end like that by chance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    headline: str
    rest: str
    """To be unfolded; empty: the headline is all."""


def headline_of(text: str) -> str:
    """The first line, or of a traceback the line that names the error."""
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        return ""
    if lines[0].strip() != _HEADER:
        return lines[0].strip()
    return next((line for line in lines[1:] if not line[0].isspace()), lines[-1]).strip()


@dataclass(slots=True)
class Telling:
    """Texts in the order in which a page shows them."""

    known: set[str] = field(default_factory=set)

    def tell(self, text: str, *, is_printed: bool = False) -> Said | None:
        """None: all of it was said. `is_printed`: its lines are those of a log, each with a beginning of its own."""
        lines = text.strip("\n").splitlines()
        fresh = [line for line in lines if not self._is_known(line, is_printed)]
        self.known.update(line.strip() for line in lines if line.strip())
        if not any(line.strip() for line in fresh):
            return None
        headline = headline_of("\n".join(fresh))
        rest = "\n".join(fresh).strip("\n")
        return Said(headline=headline, rest="" if rest.strip() == headline else rest)

    def _is_known(self, line: str, is_printed: bool) -> bool:
        stripped = line.strip()
        return stripped in self.known or (
            is_printed and any(len(known) >= _LEAST_ENDING and stripped.endswith(known) for known in self.known)
        )
