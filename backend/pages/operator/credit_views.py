"""Credits for failures of the platform's without a named cause, given by operators."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from backend.accounts.operators.acting import Operator
from backend.borders.types import is_storable, read_count
from backend.clock import database_now
from backend.errors import Invalid
from backend.pages.operator.frame import act_and_redirect, context_of, count_of, for_operators, text_of
from backend.pages.undoing import Done, UndoForm
from backend.usage.credits.crediting import (
    LONGEST_REASON,
    MOST_SHOWN,
    all_credits,
    billed_failures,
    give_credit,
    take_back_credit,
)


@require_safe
@for_operators
def credits(request: HttpRequest, operator: Operator) -> HttpResponse:
    job_id = request.GET.get("job", "").strip()[:32]
    job_id = job_id if is_storable(job_id) else ""
    context = context_of(
        job_id=job_id,
        failures=billed_failures(job_id),
        given=all_credits(job_id)[:MOST_SHOWN],
        longest_reason=LONGEST_REASON,
        now=database_now(),
    )
    return render(request, "pages/operator/credits.html", context)


@require_POST
@for_operators
def give(request: HttpRequest, operator: Operator) -> HttpResponse:
    def act() -> Done:
        job_id, n = text_of(request, "job"), count_of(request, "attempt", "Attempt")
        reason = request.POST.get("reason", "").strip()
        if not is_storable(reason):
            raise Invalid("Reason: use plain text.")
        credit = give_credit(operator, job_id, n, reason=reason, now=database_now())
        undo = UndoForm(address=reverse("operator_take_back_credit", args=[str(credit.pk)]))
        return Done(f"Attempt {n} of {job_id} is credited. The team sees the reason with its usage.", undo)

    return act_and_redirect(request, act, "operator_credits")


@require_POST
@for_operators
def take_back(request: HttpRequest, operator: Operator, credit_id: str) -> HttpResponse:
    def act() -> Done:
        credit = take_back_credit(operator, read_count(credit_id) or 0, now=database_now())
        job_id, n = credit.attempt.job_id, credit.attempt.n
        fields = {"job": job_id, "attempt": str(n), "reason": credit.reason}
        undo = UndoForm(address=reverse("operator_give_credit"), fields=fields)
        return Done(f"The credit of attempt {n} of {job_id} is taken back. Its fault time is billed again.", undo)

    return act_and_redirect(request, act, "operator_credits")
