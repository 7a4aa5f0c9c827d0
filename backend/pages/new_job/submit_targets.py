"""Targets of a submission: a project of one of the user's teams, in one of that team's pools."""

from collections.abc import Sequence
from dataclasses import dataclass

from backend.accounts.models import Project, User
from backend.accounts.selectors import may_submit, projects_of, teams_of
from backend.assets.models import AssetKind
from backend.assets.selectors import names_for
from backend.pools.models import ResourcePool
from backend.pools.selectors import nominal_of, pools_of, use_by_team
from engine.spec.assets.named_assets import BUILT_IN_DATA, BUILT_IN_MODELS


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitTarget:
    project: Project
    pool: ResourcePool

    @property
    def value(self) -> str:
        return f"{self.project.pk}/{self.pool.pk}"

    @property
    def label(self) -> str:
        return f"{self.project.team.name} › {self.project.name} · pool {self.pool.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    models: list[str]
    data: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaUse:
    team: str
    pool: str
    held: int
    nominal: int


def submit_targets_of(user: User) -> list[SubmitTarget]:
    return [
        SubmitTarget(project=project, pool=pool)
        for team in teams_of(user)
        if may_submit(user, team)
        for project in projects_of(team).select_related("team")
        for pool in pools_of(team)
    ]


def names_to_choose(targets: Sequence[SubmitTarget]) -> Names:
    """Models and data sets that a spec may name, built-in ones first."""
    projects = list({target.project.pk: target.project for target in targets}.values())
    return Names(
        models=[*BUILT_IN_MODELS, *names_for(projects, AssetKind.MODEL)],
        data=[*BUILT_IN_DATA, *names_for(projects, AssetKind.DATA)],
    )


def quota_use_of(user: User) -> list[QuotaUse]:
    return [
        QuotaUse(team=team.name, pool=pool.name, held=use_by_team(pool).get(team.pk, 0), nominal=nominal_of(team, pool))
        for team in teams_of(user)
        for pool in pools_of(team)
    ]
