"""Mails about a change of address: a confirmation link to the new address, a cancellation link to the old one.

Invariant: whether another account has the new address changes only the mail that its owner reads: the same number of
mails is sent, in the same order, and the old address gets the same text.
"""

from backend.accounts.addresses.changes import CANCELLABLE, LASTS, ChangeRequest, cancel_link_of, proof_link_of
from backend.accounts.letters import send_letter
from backend.accounts.models import AddressChange

_PROVE = """Someone signed in to Laminar as {before} wants to use this address to sign in from now on.

If this was you, open this link within {hours} hours, in the browser where you are signed in:

{link}

If this was not you, do nothing: the address will not be used.
"""
_IS_YOURS = """Someone signed in to Laminar with another account wants to use this address to sign in.

Your account already uses it, so nothing has changed. If this was you, sign in with this address.
"""
_ASKED = """Someone signed in to your Laminar account wants to sign in with {after} from now on. Nothing changed yet.

If this was you, there is nothing to do.

If it was not, someone has your password. This link ends every session, removes the password and keeps this address.
It works for {days} days, even after the address has changed:

{link}
"""
_DONE = """You now sign in to Laminar with {after} and no longer with this address.

If this was not you, this link restores it, ends every session and removes the password. It works until {until}:

{link}
"""


def mail_change_request(asked: ChangeRequest) -> bool:
    """True if the server accepted both mails."""
    change = asked.change
    hours, days = LASTS.total_seconds() / 3_600, CANCELLABLE.days
    proof = _PROVE.format(before=change.before, hours=f"{hours:.0f}", link=proof_link_of(asked.token))
    to_new = send_letter(change.after, "Confirm your new Laminar address", _IS_YOURS if asked.is_taken else proof)
    warning = _ASKED.format(after=change.after, days=days, link=cancel_link_of(change))
    return send_letter(change.before, "Your Laminar address is about to change", warning) and to_new


def mail_change_done(change: AddressChange) -> bool:
    until = f"{change.asked_at + CANCELLABLE:%d %B %Y}"
    text = _DONE.format(after=change.after, until=until, link=cancel_link_of(change))
    return send_letter(change.before, "Your Laminar address has changed", text)
