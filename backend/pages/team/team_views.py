"""The team's people: members and their roles, invitations, service accounts, and the second-factor requirement.

Invariants:
- a button is shown only to users with its permission, and the service checks the permission again;
- a team of other users gives the same 404 as one that does not exist;
- an invitation's link is shown once, on the page after the form (`shown_once`); a link sent by mail is not shown.
"""

from collections.abc import Callable
from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from backend.accounts.acting import Acting
from backend.accounts.keys.service_accounts import close_service_account, open_service_account
from backend.accounts.models import Membership, Role, Team
from backend.accounts.people.invitations import EMAIL, invite, link_of, mail, revoke_invitation
from backend.accounts.people.memberships import change_role, membership_of, remove_member
from backend.accounts.people.teams import change_team, the_project
from backend.accounts.rights import GRANTS, has_second_factor, lacks_second_factor
from backend.accounts.selectors import members_of, open_invitations_of, projects_of, service_accounts_of, teams_of
from backend.accounts.signing_in.denials import mark
from backend.clock import database_now
from backend.errors import Invalid, Refusal
from backend.pages import curl
from backend.pages.shown_once import shown_at, taken_out
from backend.pages.undoing import Done, UndoForm, show_outcome
from backend.pages.views import user_of

_LONGEST_NAME = 80


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
@login_required
def members(request: HttpRequest) -> HttpResponse:
    """POST creates an invitation; the next page shows its link."""
    acting = acting_in(request)
    if request.method != "POST":
        return _show(request, acting, made=taken_out(request))
    now, email, role = database_now(), request.POST.get("email", "").strip(), request.POST.get("role", "")
    if not EMAIL.fullmatch(email) or not email.isprintable() or len(email) > 254 or role not in Role.values:
        return _show(request, acting, wrong="Enter an email address such as ada@example.org.", status=422)
    try:
        invitation, token = invite(acting, email=email, role=Role(role), now=now)
    except Refusal as refusal:
        return _show(request, acting, wrong=refusal.detail, status=refusal.status)
    mailed = mail(invitation, token)
    secrets = {"email": invitation.email} | ({"mailed": "yes"} if mailed else {"link": link_of(token)})
    return shown_at(request, address_of("members", acting.team), invitation.pk, secrets)


@require_POST
@never_cache
@login_required
def member(request: HttpRequest, user_id: str) -> HttpResponse:
    """Changes the role, or with `remove` ends the membership."""
    acting, now = acting_in(request), database_now()
    is_self = acting.user.public_id == user_id

    def change() -> Done | str:
        if "remove" in request.POST:
            remove_member(acting, user_id, now=now)
            return (
                f"You have left {acting.team.name}."
                if is_self
                else "Member removed. Their keys of this team are revoked."
            )
        role = request.POST.get("role", "")
        if role not in Role.values:
            raise Invalid("Choose a role.")
        before = membership_of(acting.team, user_id).role
        changed = change_role(acting, user_id, Role(role), now=now)
        address = f"{reverse('change_member', args=[user_id])}?team={acting.team.pk}"
        undo = UndoForm(address=address, fields={"role": before}) if before != role and not is_self else None
        return Done(f"{changed.user.email} is now {changed.role}.", undo)

    return _done(request, acting, change)


@require_POST
@never_cache
@login_required
def invitation(request: HttpRequest, invitation_id: str) -> HttpResponse:
    acting = acting_in(request)

    def revoke() -> str:
        revoke_invitation(acting, invitation_id, now=database_now())
        return "Invitation revoked. Its link no longer works."

    return _done(request, acting, revoke)


@require_POST
@never_cache
@login_required
def service_accounts(request: HttpRequest) -> HttpResponse:
    acting = acting_in(request)

    def make() -> str:
        name, role = request.POST.get("name", "").strip(), request.POST.get("role", "")
        if not name or len(name) > _LONGEST_NAME or not name.isprintable() or role not in Role.values:
            raise Invalid(f"Enter a name of at most {_LONGEST_NAME} characters and choose a role.")
        wanted = request.POST.get("project", "")
        project = the_project(acting.team, wanted) if wanted else None
        account = open_service_account(acting, name=name, role=Role(role), project=project, now=database_now())
        return f"Service account {account.name} created. Next, create a key for it under Keys."

    return _done(request, acting, make)


@require_POST
@never_cache
@login_required
def close_account(request: HttpRequest, account_id: str) -> HttpResponse:
    acting = acting_in(request)

    def close() -> str:
        close_service_account(acting, account_id, now=database_now())
        return "Service account closed. Its keys are revoked."

    return _done(request, acting, close)


@require_POST
@never_cache
@login_required
def rules(request: HttpRequest) -> HttpResponse:
    acting = acting_in(request)
    wanted = request.POST.get("requires_mfa") == "yes"

    def change() -> Done:
        before = acting.team.requires_mfa
        change_team(acting, requires_mfa=wanted, now=database_now())
        said = "Owners and admins now need a second factor." if wanted else "A second factor is now optional."
        may_go_back = before != wanted and (wanted or has_second_factor(acting.user))
        address, fields = address_of("team_rules", acting.team), {"requires_mfa": "yes" if before else "no"}
        return Done(said, UndoForm(address=address, fields=fields) if may_go_back else None)

    return _done(request, acting, change)


def acting_in(request: HttpRequest) -> Acting:
    """The user as a member of the team in the URL, or of their first team."""
    user, wanted = user_of(request), request.GET.get("team", "")
    teams = teams_of(user)
    team = teams.filter(pk=wanted).first() if wanted else teams.first()
    acting = Acting.person(user, team) if team else None
    if acting is None:
        raise Http404("This team does not exist, or you are not a member.")
    return acting


def address_of(name: str, team: Team) -> str:
    return f"{reverse(name)}?team={team.pk}"


def frame_of(acting: Acting) -> dict[str, Any]:
    """The context of the frame of every team page."""
    true_role = Role(Membership.objects.get(user=acting.user, team=acting.team).role)
    return {
        "team": acting.team,
        "teams": list(teams_of(acting.user)),
        "role": true_role,
        "rules": acting.rules,
        "must_set_up": lacks_second_factor(acting.user, acting.team, true_role),
    }


def act_and_notify(request: HttpRequest, act: Callable[[], Done | str]) -> bool:
    """True if the act succeeded. The next page shows the outcome, with Undo; a missing object is a 404."""
    try:
        show_outcome(request, act())
    except Refusal as refusal:
        if refusal.status == 404:
            raise Http404(refusal.detail) from None
        mark(request, refusal)
        messages.error(request, refusal.detail)
        return False
    return True


def _done(request: HttpRequest, acting: Acting, act: Callable[[], Done | str]) -> HttpResponse:
    act_and_notify(request, act)
    if not Membership.objects.filter(user=acting.user, team=acting.team).exists():
        return redirect("jobs")
    return redirect(address_of("members", acting.team))


def _show(
    request: HttpRequest, acting: Acting, *, made: dict[str, Any] | None = None, wrong: str = "", status: int = 200
) -> HttpResponse:
    grants = GRANTS[acting.role] if acting.rules else frozenset()
    num_owners = Membership.objects.filter(team=acting.team, role=Role.OWNER).count()
    people = [
        {
            "user": row.user,
            "role": row.role,
            "is_self": row.user_id == acting.user.pk,
            "may_change": row.role in grants,
            "is_last_owner": row.role == Role.OWNER and num_owners == 1,
        }
        for row in members_of(acting.team)
    ]
    context = frame_of(acting) | {
        "people": people,
        "grants": [role for role in Role if role in grants],
        "invitations": list(open_invitations_of(acting.team, now=database_now())) if acting.rules else [],
        "service_accounts": list(service_accounts_of(acting.team)),
        "projects": list(projects_of(acting.team)),
        "made": made,
        "wrong": wrong,
        "typed": request.POST,
        "may_set_rule": acting.role == Role.OWNER,
        "has_second_factor": has_second_factor(acting.user),
        "curl": curl.get("/members"),
        "now": database_now(),
    }
    return render(request, "pages/team/members.html", context, status=status)
