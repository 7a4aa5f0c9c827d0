"""What a rule concludes about a run."""

from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal[
    "stalled", "environment", "untrusted", "mismatch", "collapsing", "stuck", "stale",
    "solved", "plateau", "learning", "early",
    "starved_trainer", "starved_rollouts", "retold",
]  # fmt: skip
Tone = Literal["alarm", "notice", "good", "plain"]

# By rank, highest first: what stops the run, then what makes its numbers meaningless, then what it does with them.
WORDS: Final[dict[Kind, str]] = {
    "stalled": "stalled",
    "environment": "environment fails",
    "untrusted": "rewards not trusted",
    "mismatch": "rollouts and trainer disagree",
    "collapsing": "collapsing",
    "stuck": "stuck",
    "stale": "dropping old answers",
    "solved": "solved",
    "plateau": "plateau",
    "learning": "learning",
    "early": "too early to judge",
    "starved_trainer": "trainer waits",
    "starved_rollouts": "replicas wait",
    "retold": "conversations reread",
}
RANKS: Final[dict[Kind, int]] = {kind: rank for rank, kind in enumerate(WORDS)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    kind: Kind
    tone: Tone
    sentence: str
    """What is wrong or right, with numbers."""
    evidence: tuple[str, ...] = ()
    """Series that support the finding, the clearest first."""
    remedy: str = ""
    since_step: int | None = None

    @property
    def word(self) -> str:
        return WORDS[self.kind]

    @property
    def is_alarm(self) -> bool:
        return self.tone == "alarm"


def label_of_kind(kind: str) -> str:
    """Label of a stored kind, which a later release may have written."""
    return next((word for known, word in WORDS.items() if known == kind), kind)


def alarm(kind: Kind, sentence: str, *, evidence: tuple[str, ...], remedy: str) -> Finding:
    return Finding(kind=kind, tone="alarm", sentence=sentence, evidence=evidence, remedy=remedy)


def percent(share: float) -> str:
    """Whole percent, rounded to 0 or 100 only if exact: 99.7 % is not all."""
    if 0 < share < 0.01:
        return "under 1 %"
    return f"{100 * share:.0f} %" if share in (0.0, 1.0) or 100 * share < 99 else "over 99 %"
