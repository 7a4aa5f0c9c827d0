"""laminar members, audit."""

from datetime import UTC, datetime

import click
from rich.text import Text

from .commands import Group, laminar, with_session
from .rendering import ago, json_text, plain, table
from .session import Session

ROLES = click.Choice(["owner", "admin", "member", "viewer"])


@laminar.group("members", cls=Group, invoke_without_command=True)
@click.pass_context
def members(context: click.Context) -> None:
    """List the team's members; see also `members invite`, `members role` and `members remove`."""
    if context.invoked_subcommand is not None:
        return
    session: Session = context.find_root().obj
    found = session.client.team.members()
    session.document(found)
    rows = [(each.id, each.email, each.role, ago(each.last_sign_in_at)) for each in found]
    session.show(table("id", "address", "role", "signed in", rows=rows))


@members.command("invite")
@click.argument("email", metavar="ADDRESS")
@click.option("--role", type=ROLES, default="member", show_default=True)
@with_session
def invite(session: Session, email: str, role: str) -> None:
    """Invite a member. The link is printed only once, unless it is mailed, and works for this address only."""
    made = session.client.team.invite(email, role=role)
    session.document(made)
    session.note(
        "The invitation was sent by email." if made.mailed else "This site sends no mail: pass the link on yourself."
    )
    if made.link:
        session.show(Text(plain(made.link)))


@members.command("role")
@click.argument("user_id", metavar="MEMBER")
@click.argument("role", type=ROLES)
@with_session
def change_role(session: Session, user_id: str, role: str) -> None:
    """Change a member's role."""
    member = session.client.team.change_member(user_id, role)
    session.document(member)
    session.show(f"{plain(member.email)} is now {plain(member.role)}.")


@members.command("remove")
@click.argument("user_ids", metavar="MEMBER...", nargs=-1, required=True)
@with_session
def remove(session: Session, user_ids: tuple[str, ...]) -> None:
    """Remove members. Their keys of this team are revoked at once; their jobs keep running."""
    for user_id in user_ids:
        session.client.team.remove_member(user_id)
        session.line({"removed": user_id})
        session.show(f"Removed {plain(user_id)}.")


@laminar.command("audit")
@click.option("--actor", help="Such as key:key_… or user:….")
@click.option("--action", help="Such as key.created.")
@click.option("--target", help="Id of the target.")
@click.option("--since", type=click.DateTime(["%Y-%m-%d"]), help="Since this day (UTC).")
@click.option("-n", "most", default=50, show_default=True, type=click.IntRange(1), help="Maximum number of rows.")
@with_session
def audit(
    session: Session, actor: str | None, action: str | None, target: str | None, since: datetime | None, most: int
) -> None:
    """Show the team's audit log, newest first. The key needs the scope audit:read."""
    moment = None if since is None else since.replace(tzinfo=UTC)
    given = session.client.team.audit(actor=actor, action=action, target=target, since=moment, most=most)
    found = list(given)
    session.document(found)
    rows = [
        (each.seq, f"{each.at.astimezone():%Y-%m-%d %H:%M:%S}", each.actor, each.action, each.target, _data(each.data))
        for each in found
    ]
    session.show(table("seq", "when", "who", "what", "to", "details", rows=rows, numbers=("seq",)))


def _data(data: dict[str, object]) -> str:
    return json_text(data) if data else ""
