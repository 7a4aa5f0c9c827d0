"""The verdict: of all that rules say, what stands above the page, and what below it.

Invariants:
- ill health outranks everything: while an alarm is active there is no praise and no advice about speed;
- there is always a first finding, so that a page has always something true to say.
"""

from collections.abc import Sequence

from backend.verdicts.rules.alarms import alarms_of
from backend.verdicts.rules.course import course_of
from backend.verdicts.rules.finding import RANKS, Finding
from backend.verdicts.rules.observed import Observed
from backend.verdicts.rules.pace import pace_of


def judge(run: Observed) -> Sequence[Finding]:
    """The first is the verdict."""
    alarms = sorted(alarms_of(run), key=lambda found: RANKS[found.kind])
    if alarms:
        return alarms
    pace = None if run.is_over else pace_of(run)
    return [course_of(run), *([pace] if pace else [])]
