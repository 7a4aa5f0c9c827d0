"""The filters of the list: owners, projects, pools and tags of the existing jobs, and verdicts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from django.db.models import F, Func, QuerySet

from backend.accounts.models import Project, User
from backend.jobs.models import Job
from backend.pages.jobs.asked import ALARM, Asked
from backend.pools.models import ResourcePool
from backend.verdicts.rules.finding import WORDS, label_of_kind

MOST: Final = 200
_TITLES: Final = {"owner": "Owner", "project": "Project", "pool": "Pool", "tag": "Tag", "verdict": "Verdict"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    name: str
    """The query parameter."""
    title: str
    chosen: str
    options: Sequence[tuple[str, str]]
    """(value, label)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Narrowed:
    """A filter that is set, and the list without it."""

    title: str
    label: str
    without: str


def choices_of(asked: Asked, jobs: QuerySet[Job]) -> list[Choice]:
    """`jobs`: all that the user may see. A filter with a single value is not offered."""
    options = {
        "owner": [(email, email) for email in _owners(jobs)],
        "project": [(each.pk, f"{each.team.name} › {each.name}") for each in _projects(jobs)],
        "pool": [(each.pk, each.name) for each in _pools(jobs)],
        "tag": [(tag, tag) for tag in _tags(jobs)],
        "verdict": [(ALARM, "any alarm"), *((kind, word) for kind, word in WORDS.items())],
    }
    return [
        Choice(name=name, title=_TITLES[name], chosen=getattr(asked, name), options=found)
        for name, found in options.items()
        if len(found) > 1 or getattr(asked, name) or (name == "tag" and found)
    ]


def narrowed(asked: Asked) -> Iterator[Narrowed]:
    for name, title in _TITLES.items():
        value: str = getattr(asked, name)
        if value:
            yield Narrowed(title=title, label=_label(name, value) or value, without=asked.without(name))


def _label(name: str, value: str) -> str | None:
    """The label for people; None: unknown value."""
    match name:
        case "project":
            return Project.objects.filter(pk=value).values_list("name", flat=True).first()
        case "pool":
            return ResourcePool.objects.filter(pk=value).values_list("name", flat=True).first()
        case "verdict":
            return "any alarm" if value == ALARM else label_of_kind(value)
    return value


def _owners(jobs: QuerySet[Job]) -> Sequence[str]:
    people = User.objects.filter(pk__in=jobs.order_by().values("created_by")).order_by("email")
    return list(people.values_list("email", flat=True)[:MOST])


def _projects(jobs: QuerySet[Job]) -> Sequence[Project]:
    found = Project.objects.filter(pk__in=jobs.order_by().values("project")).select_related("team")
    return list(found.order_by("team__name", "name", "pk")[:MOST])


def _pools(jobs: QuerySet[Job]) -> Sequence[ResourcePool]:
    return list(ResourcePool.objects.filter(pk__in=jobs.order_by().values("pool")).order_by("name")[:MOST])


def _tags(jobs: QuerySet[Job]) -> Sequence[str]:
    each = jobs.order_by().annotate(each=Func(F("tags"), function="unnest")).values_list("each", flat=True)
    return list(each.distinct().order_by("each")[:MOST])
