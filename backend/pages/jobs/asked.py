"""The query parameters of the job list: filters, order and page.

Invariants:
- only this module reads them and writes links of the list, so every link keeps the other parameters;
- an unknown order or verdict is ignored; an unknown owner, project, pool or tag matches no job, and is shown as a
  filter that can be removed.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Self
from urllib.parse import urlencode

from django.db.models import Case, F, FloatField, Q, QuerySet, When
from django.db.models.expressions import BaseExpression, Combinable
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Cast
from django.http import QueryDict

from backend.jobs.models import Job, JobState
from backend.pages import words
from backend.pages.jobs.judged import ill_jobs, jobs_judged
from backend.verdicts.rules.finding import WORDS

ACTIVE: Final = "active"
ALARM: Final = "alarm"
LONGEST: Final = 120
FILTERS: Final = ("owner", "project", "pool", "tag", "verdict")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")

# For an evaluation, which trains no step: its held-out prompts.
_PROMPTS = Cast(KeyTextTransform("prompts", KeyTextTransform("evaluation", "spec")), FloatField())
_DONE = Case(
    When(steps__gt=0, then=Cast(F("step"), FloatField()) / Cast(F("steps"), FloatField())),
    default=Cast(F("answered"), FloatField()) / _PROMPTS,
    output_field=FloatField(),
)
ORDERS: Final[Mapping[str, BaseExpression | Combinable]] = {
    "age": F("created_at"),
    "name": F("name"),
    "state": F("state"),
    "progress": _DONE,
    "devices": F("devices"),
    "owner": F("created_by__email"),
}
"""By column name; a leading `-` reverses the order."""
NEWEST: Final = "-age"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    q: str = ""
    state: str = ""
    owner: str = ""
    project: str = ""
    pool: str = ""
    tag: str = ""
    verdict: str = ""
    sort: str = ""
    """Empty: newest first."""

    @classmethod
    def of(cls, sent: QueryDict) -> Self:
        given = {name: _CONTROL.sub("", sent.get(name, "")).strip()[:LONGEST] for name in cls.__slots__}
        known = {
            "state": given["state"] in (ACTIVE, *JobState.values),
            "verdict": given["verdict"] in (ALARM, *WORDS),
            "sort": given["sort"] != NEWEST and given["sort"].removeprefix("-") in ORDERS,
        }
        return cls(**{name: text if known.get(name, True) else "" for name, text in given.items()})

    def found_in(self, jobs: QuerySet[Job]) -> QuerySet[Job]:
        """In any state."""
        if self.q:
            jobs = jobs.filter(Q(name__icontains=self.q) | Q(tags__contains=[self.q]) | Q(pk=self.q))
        if self.owner:
            jobs = jobs.filter(created_by__email__iexact=self.owner)
        if self.project:
            jobs = jobs.filter(project=self.project)
        if self.pool:
            jobs = jobs.filter(pool=self.pool)
        if self.tag:
            jobs = jobs.filter(tags__contains=[self.tag])
        if self.verdict:
            jobs = jobs.filter(pk__in=ill_jobs() if self.verdict == ALARM else jobs_judged(self.verdict))
        return jobs

    def in_state(self, jobs: QuerySet[Job]) -> QuerySet[Job]:
        if self.state == ACTIVE:
            return jobs.filter(state__in=words.ACTIVE_STATES)
        return jobs.filter(state=self.state) if self.state else jobs

    def in_order(self, jobs: QuerySet[Job]) -> QuerySet[Job]:
        """Ties: newer first."""
        if not self.sort:
            return jobs
        key = ORDERS[self.sort.removeprefix("-")]
        assert isinstance(key, F | Case)
        return jobs.order_by(key.desc() if self.sort.startswith("-") else key.asc(), "-created_at", "-id")

    def sorts_by(self, column: str) -> str:
        """The value of `aria-sort`; empty: not sorted by this column."""
        sort = self.sort or NEWEST
        return "" if sort.removeprefix("-") != column else "descending" if sort.startswith("-") else "ascending"

    @property
    def parameters(self) -> dict[str, str]:
        """The parameters that are set, in URL order."""
        return {name: text for name in self.__slots__ if (text := getattr(self, name))}

    @property
    def narrows(self) -> bool:
        return any(self.parameters.get(name) for name in FILTERS)

    def without(self, name: str) -> str:
        """The same list without this filter."""
        return "?" + urlencode({each: text for each, text in self.parameters.items() if each != name})

    def address(self, *, page: int = 1, **changes: str) -> str:
        """The same list with these changes."""
        given = replace(self, **changes).parameters
        return "?" + urlencode(given | ({"page": str(page)} if page > 1 else {}))
