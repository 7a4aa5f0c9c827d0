"""The query parameters of the trajectories tab.

Invariant: any input is accepted: invalid filters are ignored and dropped from the form.
"""

import math
import re
from dataclasses import dataclass
from typing import Final

from django.http import QueryDict

from backend.borders.types import read_count
from backend.pages.trajectories.meanings import ENDS, OUTCOMES
from backend.pages.trajectories.sought import NOTHING, Sought
from backend.telemetry.fulltext.question import LONGEST

_UNPRINTABLE: Final = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
_LARGEST_REWARD: Final = 1e12


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    sought: Sought = NOTHING
    end: str = ""
    """Empty: any; likewise for the outcome."""
    outcome: str = ""
    min_reward: float | None = None
    max_reward: float | None = None
    version: int | None = None
    min_staleness: int | None = None
    step: int | None = None

    @classmethod
    def of(cls, sent: QueryDict) -> "Asked":
        end, outcome = sent.get("end", ""), sent.get("outcome", "")
        return cls(
            sought=Sought.of(_UNPRINTABLE.sub("", sent.get("q", "")).strip()[:LONGEST]),
            end=end if end in ENDS else "",
            outcome=outcome if outcome in OUTCOMES else "",
            min_reward=_read_reward(sent.get("min_reward", "")),
            max_reward=_read_reward(sent.get("max_reward", "")),
            version=read_count(sent.get("version", "")),
            min_staleness=read_count(sent.get("min_staleness", "")),
            step=read_count(sent.get("step", "")),
        )

    @property
    def is_filter(self) -> bool:
        """A step alone is not a filter: the whole step is shown."""
        return self != Asked(step=self.step)

    @property
    def has_details(self) -> bool:
        """Whether a filter other than the search text is set."""
        return self != Asked(sought=self.sought, step=self.step)

    @property
    def parameters(self) -> dict[str, str]:
        """The filters as query parameters, of this page or of the API."""
        parameters = {
            "q": self.sought.text,
            "end": self.end,
            "outcome": self.outcome,
            "min_reward": self.min_reward,
            "max_reward": self.max_reward,
            "version": self.version,
            "min_staleness": self.min_staleness,
            "step": self.step,
        }
        return {name: str(value) for name, value in parameters.items() if value not in ("", None)}


def _read_reward(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) and abs(number) <= _LARGEST_REWARD else None
