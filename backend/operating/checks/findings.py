"""Findings of a check: good, or one of the named faults.

Invariants:
- a fault has one name and one cure, the same on the terminal, on the page and in infra/OPERATING.md;
- a finding never contains a password, a token or a key.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from backend.environment import Environment


class Verdict(StrEnum):
    GOOD = "good"
    WARNING = "warning"
    """It works, but an operator should know."""
    WRONG = "wrong"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    observation: str
    verdict: Verdict = Verdict.GOOD
    fault: str = ""
    cure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    name: str
    cure: str
    verdict: Verdict = Verdict.WRONG

    def found(self, observation: str) -> Finding:
        """`observation`: the observation, in one line."""
        return Finding(
            observation=" ".join(observation.split())[:400], verdict=self.verdict, fault=self.name, cure=self.cure
        )


def good(observation: str) -> Finding:
    return Finding(observation=observation)


Check = Callable[[Environment], Iterator[Finding]]
"""Ends within seconds, whatever is broken."""
