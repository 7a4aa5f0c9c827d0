"""Draining hosts of a pool's Ray and returning them, and sending jobs back to the queue to make way."""

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_POST

from backend.accounts.operators.acting import Operator
from backend.clock import database_now
from backend.errors import Invalid, NotFound
from backend.jobs.control.pausing import requeue
from backend.jobs.models import Job
from backend.pages.operator.frame import act_and_redirect, for_operators, text_of
from backend.pages.operator.pool_views import pool_or_404
from backend.pages.operator.undo_forms import undo_host
from backend.pages.undoing import Done
from backend.pools.clusters.drains import drain, give_back
from backend.pools.models import Reservation


@require_POST
@for_operators
def change_host(request: HttpRequest, operator: Operator, pool_id: str) -> HttpResponse:
    """The pressed button names the action: drain or give_back."""
    pool = pool_or_404(pool_id)

    def act() -> Done | str:
        name, now = request.POST.get("host", "")[:255], database_now()
        match text_of(request, "act"):
            case "drain":
                drain(operator, pool, name, reason=text_of(request, "reason"), now=now)
                message = f"{name} is draining: no new work is placed on it. Running jobs finish or are preempted."
                return Done(message, undo_host(pool, name))
            case "give_back":
                give_back(operator, pool, name, now=now)
                return f"{name} is back in the pool. Jobs may be placed on it again."
            case _:
                raise Invalid("Choose an action: drain or return to pool.")

    return act_and_redirect(request, act, "operator_pool", pool_id)


@require_POST
@for_operators
def make_way(request: HttpRequest, operator: Operator, pool_id: str, job_id: str) -> HttpResponse:
    pool = pool_or_404(pool_id)

    def act() -> str:
        if not Reservation.objects.filter(pool=pool, job_id=job_id, released_at__isnull=True).exists():
            raise NotFound
        job: Job = requeue(job_id, actor=operator.name, now=database_now())
        return f"{job.pk} pauses at a checkpoint and returns to its old queue position."

    return act_and_redirect(request, act, "operator_pool", pool_id)
