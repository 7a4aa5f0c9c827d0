"""REST: pools, quotas and budgets. Only operators of the platform may change quotas and budgets."""

from django.http import HttpRequest, HttpResponse
from ninja import Router

from backend.accounts.keys.bearer import MAY_READ, ApiKeyAuth, caller_of
from backend.api.etags import IfMatch, etag_of, tagged
from backend.api.pagination import Page
from backend.api.problems import problems
from backend.borders.types import PathId
from backend.clock import database_now
from backend.pools.budgets import budget_states
from backend.pools.clusters.probes import probe_of
from backend.pools.representations import (
    BudgetIn,
    BudgetOut,
    PoolOut,
    PoolQuotaOut,
    QuotaIn,
    TeamQuotaOut,
    represent_budget,
    represent_pool,
    represent_pool_quota,
    represent_team_quota,
)
from backend.pools.selectors import pools_of, quotas_in, quotas_of, the_pool, the_team, use_by_team
from backend.pools.services import QuotaTerms, set_budget, set_quota

router = Router(tags=["Pools"])

MAY_SEE_USE = ApiKeyAuth("usage:read")
MAY_OPERATE = ApiKeyAuth("quota:write")


@router.get("/pools", auth=MAY_READ, response={200: Page[PoolOut]} | problems(), summary="List the team's pools")
def pools(request: HttpRequest) -> Page[PoolOut]:
    team, now = caller_of(request).team, database_now()
    mine = {quota.pool_id: quota for quota in quotas_of(team)}
    shown = []
    for pool in pools_of(team):
        use = use_by_team(pool)
        held = {"used": use.get(team.pk, 0), "reserved": sum(use.values())}
        shown.append(represent_pool(pool, mine[pool.pk], probe_of(pool), **held, now=now))
    return Page(data=shown)


@router.get(
    "/quota",
    auth=MAY_SEE_USE,
    response={200: Page[PoolQuotaOut]} | problems(),
    summary="List the team's quotas",
)
def quota(request: HttpRequest) -> Page[PoolQuotaOut]:
    team = caller_of(request).team
    rows = quotas_of(team)
    return Page(data=[represent_pool_quota(row, used=use_by_team(row.pool).get(team.pk, 0)) for row in rows])


@router.get(
    "/pools/{pool_id}/quotas",
    auth=MAY_OPERATE,
    response={200: Page[TeamQuotaOut]} | problems(404),
    summary="List a pool's quotas",
)
def pool_quotas(request: HttpRequest, response: HttpResponse, pool_id: PathId) -> Page[TeamQuotaOut]:
    """For operators. The ETag covers all quotas of the pool. Send it as If-Match to change one of them."""
    pool = the_pool(pool_id)
    use = use_by_team(pool)
    tagged(response, etag_of(pool.version))
    return Page(data=[represent_team_quota(row, used=use.get(row.team_id, 0)) for row in quotas_in(pool)])


@router.put(
    "/pools/{pool_id}/quotas/{team_id}",
    auth=MAY_OPERATE,
    response={200: TeamQuotaOut} | problems(400, 404, 409, 412, 413, 415, 422),
    summary="Set a team's quota",
)
def put_quota(
    request: HttpRequest,
    response: HttpResponse,
    pool_id: PathId,
    team_id: PathId,
    body: QuotaIn,
    if_match: IfMatch = None,
) -> TeamQuotaOut:
    """For operators. Running jobs continue. 409 `quota_exceeds_pool`: the teams' nominal quotas must fit into the pool
    together, so that each can be returned to its team."""
    pool, team = the_pool(pool_id), the_team(team_id)
    caller = caller_of(request)
    terms = QuotaTerms(**body.model_dump())
    row = set_quota(pool, team, terms, if_match=if_match, actor=caller.actor, now=database_now())
    tagged(response, etag_of(row.pool.version))
    return represent_team_quota(row, used=use_by_team(pool).get(team.pk, 0))


@router.get("/budgets", auth=MAY_SEE_USE, response={200: BudgetOut} | problems(), summary="Get the team's budget")
def budget(request: HttpRequest, response: HttpResponse) -> BudgetOut:
    return _budget(caller_of(request).team.pk, response)


@router.put(
    "/budgets/{team_id}",
    auth=MAY_OPERATE,
    response={200: BudgetOut} | problems(400, 404, 412, 413, 415, 422),
    summary="Set a team's budget",
)
def put_budget(
    request: HttpRequest, response: HttpResponse, team_id: PathId, body: BudgetIn, if_match: IfMatch = None
) -> BudgetOut:
    """For operators. Running jobs continue to their end. The new limit applies to the next start."""
    team = the_team(team_id)
    set_budget(team, body.gpu_seconds, if_match=if_match, actor=caller_of(request).actor, now=database_now())
    return _budget(team.pk, response)


def _budget(team_id: str, response: HttpResponse) -> BudgetOut:
    state = budget_states([team_id], now=database_now())[team_id]
    tagged(response, etag_of(state.version))
    return represent_budget(team_id, state)
