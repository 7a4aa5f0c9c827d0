"""laminar webhooks.

Invariant: a signing secret is printed only once, on creation.
"""

from collections.abc import Sequence

import click
from rich.text import Text

from ..answers.webhooks import Delivery, NewWebhook
from .commands import Group, laminar, with_session
from .rendering import ago, plain, table, when
from .session import Session


@laminar.group("webhooks", cls=Group, invoke_without_command=True)
@click.pass_context
def webhooks(context: click.Context) -> None:
    """List webhooks; see also `webhooks create` and `webhooks deliveries`. The key needs the scope webhooks:write."""
    if context.invoked_subcommand is not None:
        return
    session: Session = context.find_root().obj
    found = list(session.client.webhooks.each())
    session.document(found)
    rows = [
        (
            each.id,
            each.url,
            " ".join(each.events),
            _state(each.enabled, each.disabled_reason),
            ago(each.last_success_at),
        )
        for each in found
    ]
    session.show(table("id", "address", "events", "state", "last success", rows=rows))


def _state(enabled: bool, reason: str) -> str:
    return "on" if enabled else f"off: {reason}" if reason else "off"


@webhooks.command("create")
@click.argument("url")
@click.option(
    "--event", "events", multiple=True, help="Such as job.succeeded or job.*. Can be repeated (default: all)."
)
@click.option("--description", default="")
@with_session
def create(session: Session, url: str, events: Sequence[str], description: str) -> None:
    """Create a webhook. Its signing secret is printed only once."""
    _show_secret(session, session.client.webhooks.make(url, events=events or ("*",), description=description))


@webhooks.command("rotate")
@click.argument("webhook_id", metavar="WEBHOOK")
@with_session
def rotate(session: Session, webhook_id: str) -> None:
    """Create a new secret, printed only once. The previous secret also signs for a day."""
    _show_secret(session, session.client.webhooks.rotate_secret(webhook_id))


def _show_secret(session: Session, made: NewWebhook) -> None:
    session.document(made)
    session.note(f"{made.id}: store this secret now. It cannot be shown again.")
    session.show(Text(plain(made.secret)))


def _switch(name: str, enabled: bool, help_text: str) -> None:
    @webhooks.command(name, help=help_text)
    @click.argument("webhook_id", metavar="WEBHOOK")
    @with_session
    def switch(session: Session, webhook_id: str) -> None:
        changed = session.client.webhooks.change(webhook_id, enabled=enabled)
        session.document(changed)
        session.show(f"{plain(changed.id)} is {_state(changed.enabled, '')}.")


_switch("enable", True, "Enable a webhook.")
_switch("disable", False, "Disable a webhook.")


@webhooks.command("remove")
@click.argument("webhook_ids", metavar="WEBHOOK...", nargs=-1, required=True)
@with_session
def remove(session: Session, webhook_ids: Sequence[str]) -> None:
    """Remove webhooks, with their deliveries."""
    for webhook_id in webhook_ids:
        session.client.webhooks.remove(webhook_id)
        session.line({"removed": webhook_id})
        session.show(f"Removed {plain(webhook_id)}.")


@webhooks.command("test")
@click.argument("webhook_id", metavar="WEBHOOK")
@with_session
def test(session: Session, webhook_id: str) -> None:
    """Send a message of the type webhook.test; `webhooks deliveries` shows the result."""
    _show_delivery(session, session.client.webhooks.send_test(webhook_id))


@webhooks.command("deliveries")
@click.argument("webhook_id", metavar="WEBHOOK")
@click.option("--state", type=click.Choice(["pending", "delivered", "dead"]), help="Only deliveries in this state.")
@click.option("-n", "most", default=20, show_default=True, type=click.IntRange(1), help="Maximum number of rows.")
@with_session
def deliveries(session: Session, webhook_id: str, state: str | None, most: int) -> None:
    """List the deliveries of a webhook, newest first."""
    found = list(session.client.webhooks.deliveries(webhook_id, state=state, most=most))
    session.document(found)
    rows = [
        (each.id, each.type, each.state, each.num_attempts, _last_answer(each), when(each.next_attempt_at))
        for each in found
    ]
    session.show(table("id", "type", "state", "tries", "last response", "next try", rows=rows, numbers=("tries",)))


@webhooks.command("redeliver")
@click.argument("webhook_id", metavar="WEBHOOK")
@click.argument("delivery_id", metavar="DELIVERY")
@with_session
def redeliver(session: Session, webhook_id: str, delivery_id: str) -> None:
    """Redeliver a message."""
    _show_delivery(session, session.client.webhooks.redeliver(webhook_id, delivery_id))


def _show_delivery(session: Session, delivery: Delivery) -> None:
    session.document(delivery)
    session.show(f"{plain(delivery.id)} is {plain(delivery.state)}.")


def _last_answer(delivery: Delivery) -> str:
    if not delivery.attempts:
        return "–"
    last = delivery.attempts[-1]
    return str(last.status) if last.status is not None else last.error
