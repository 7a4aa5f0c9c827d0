"""Names of jobs made from other jobs, to distinguish them in lists: "Sums (retry 2)", "Sums (from step 40)".

Invariant: names do not grow from one successor to the next, and never exceed the longest allowed name.
"""

import re
from typing import Final

from backend.jobs.models import Job

LONGEST: Final = 120
_SUFFIX: Final = re.compile(r" \((?:retry|again|from step)(?: \d+)?\)$")
_RETRY: Final = re.compile(r" \(retry (\d+)\)$")


def retry_name(parent: Job) -> str:
    """One more than the highest retry of that name in the team."""
    base = _base_of(parent.name)
    names = Job.objects.filter(team=parent.team_id, name__startswith=f"{_cut(base)} (retry ").values_list(
        "name", flat=True
    )
    highest = max((int(match[1]) for name in names if (match := _RETRY.search(name))), default=0)
    return _add_suffix(base, f"retry {highest + 1}")


def again_name(name: str) -> str:
    return _add_suffix(_base_of(name), "again")


def continued_name(name: str, step: int) -> str:
    return _add_suffix(_base_of(name), f"from step {step}")


def _add_suffix(base: str, suffix: str) -> str:
    return f"{_cut(base)} ({suffix})"


def _cut(base: str) -> str:
    return base[: LONGEST - 30].rstrip()


def _base_of(name: str) -> str:
    return _SUFFIX.sub("", name)
