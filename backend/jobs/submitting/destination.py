"""The destination of a new job: its project, its pool and all quotas of the pool, read in one trip."""

from dataclasses import dataclass
from functools import cache
from typing import Any

from django.db import connection

from backend.accounts.models import Project, Team
from backend.accounts.selectors import projects_of
from backend.errors import FieldError, Invalid, NotFound
from backend.pools.models import ResourcePool, TeamQuota
from backend.prepared_queries import fetch_prepared

_PARTS = (("project", Project), ("pool", ResourcePool), ("quota", TeamQuota))


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    project: Project
    pool: ResourcePool
    quotas: list[TeamQuota]
    """Of all teams in the pool."""


def destination_of(team: Team, *, project_id: str, pool_name: str | None) -> Destination:
    """The pool by name, or the team's only pool. Raises `NotFound`, `Invalid`."""
    rows = [_split_row(row) for row in fetch_prepared(_query(), [project_id, team.pk])]
    project: Project | None = rows[0][0] if rows else projects_of(team).filter(pk=project_id).first()
    if project is None or project.pk is None:
        error = FieldError(pointer="/project", code="not_found", message="your team has no project with this id")
        raise NotFound("Project not found.", errors=[error])
    pool = the_only_pool([row[1] for row in rows], pool_name)
    return Destination(project=project, pool=pool, quotas=[row[2] for row in rows if row[1].pk == pool.pk])


def the_only_pool(choices: list[ResourcePool], name: str | None) -> ResourcePool:
    """The only choice, or the one with that name; `choices` are the team's pools. Raises `Invalid`."""
    by_name = {pool.name: pool for pool in choices}
    matches = [pool for pool in by_name.values() if name is None or pool.name == name]
    if len(matches) != 1:
        message = f"must be one of your team's pools: {', '.join(by_name)}" + (f"; got {name[:40]}" if name else "")
        if not by_name:
            message = "your team has no quota in any pool: ask an operator for one"
        error = FieldError(pointer="/pool", code="unknown_pool", message=message)
        raise Invalid(errors=[error])
    return matches[0]


@cache
def _query() -> str:
    columns = [f'{alias}."{field.column}"' for alias, model in _PARTS for field in model._meta.concrete_fields]
    return f"""
        SELECT {", ".join(columns)}
        FROM pools_teamquota mine
        JOIN pools_resourcepool pool ON pool.id = mine.pool_id
        JOIN pools_teamquota quota ON quota.pool_id = pool.id
        LEFT JOIN accounts_project project ON project.id = %s AND project.team_id = mine.team_id
        WHERE mine.team_id = %s AND (mine.nominal > 0 OR mine.borrow_limit IS NULL OR mine.borrow_limit > 0)
        ORDER BY pool.name, quota.id
    """  # noqa: S608  # names of columns


def _split_row(row: tuple[Any, ...]) -> list[Any]:
    values = iter(row)
    parts = []
    for _, model in _PARTS:
        names = [field.attname for field in model._meta.concrete_fields]
        parts.append(model.from_db(connection.alias, names, [next(values) for _ in names]))
    return parts
