"""Long texts of a job's parts: each with a headline, and without repetitions.

The same traceback is in the job's message, in the fault, in log lines of several parts and at the end of the driver's
output. It is shown at its first place; later texts show only their new lines.
"""

from dataclasses import dataclass, field
from typing import Final

_HEADER: Final = "Traceback (most recent call last):"
_LEAST_ENDING: Final = 16
"""Characters. A printed line ends with the message that it logs; shorter ends may match by chance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldedText:
    headline: str
    rest: str
    """Folded text; empty: the headline is the whole text."""


def headline_of(text: str) -> str:
    """The first line, or, for a traceback, the line that names the error."""
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        return ""
    if lines[0].strip() != _HEADER:
        return lines[0].strip()
    return next((line for line in lines[1:] if not line[0].isspace()), lines[-1]).strip()


@dataclass(slots=True)
class TextFolder:
    """Drops repetitions from texts, given in page order."""

    known: set[str] = field(default_factory=set)

    def fold(self, text: str, *, is_printed: bool = False) -> FoldedText | None:
        """None: the text has no new line. `is_printed`: its lines come from a log, each with a prefix."""
        lines = text.strip("\n").splitlines()
        fresh = [line for line in lines if not self._is_known(line, is_printed)]
        self.known.update(line.strip() for line in lines if line.strip())
        if not any(line.strip() for line in fresh):
            return None
        headline = headline_of("\n".join(fresh))
        rest = "\n".join(fresh).strip("\n")
        return FoldedText(headline=headline, rest="" if rest.strip() == headline else rest)

    def _is_known(self, line: str, is_printed: bool) -> bool:
        stripped = line.strip()
        return stripped in self.known or (
            is_printed and any(len(known) >= _LEAST_ENDING and stripped.endswith(known) for known in self.known)
        )
