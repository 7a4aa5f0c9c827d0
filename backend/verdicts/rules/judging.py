"""The verdict: ranks what the rules found.

Invariants:
- an active alarm hides praise and advice about speed;
- there is always a first finding, so a page always has something true to show.
"""

from collections.abc import Sequence

from backend.verdicts.rules.alarms import alarms_of
from backend.verdicts.rules.course import course_of
from backend.verdicts.rules.finding import RANKS, Finding
from backend.verdicts.rules.observed import Observed
from backend.verdicts.rules.pace import pace_of


def judge(run: Observed) -> Sequence[Finding]:
    """The first is the verdict."""
    alarms = sorted(alarms_of(run), key=lambda alarm: RANKS[alarm.kind])
    if alarms:
        return alarms
    pace = None if run.is_over else pace_of(run)
    return [course_of(run), *([pace] if pace else [])]
