"""Letters about a move to another address: to the new one what proves it, to the old one what cancels it.

Invariant: whether somebody else has the new address changes what its owner reads, and nothing else: as many letters go
out, one after the other, and the old address reads the same.
"""

from backend.accounts.addresses.changes import CANCELLABLE, LASTS, Asked, cancel_link_of, proof_link_of
from backend.accounts.letters import send_letter
from backend.accounts.models import AddressChange

_PROVE = """Somebody who is signed in to Laminar as {before} wants to sign in with this address from now on.

If that is you, open this link within {hours} hours, in the browser where you are signed in:

{link}

If it is not you, do nothing: the address is not used.
"""
_IS_YOURS = """Somebody who is signed in to Laminar with another account wants to sign in with this address.

You have an account with it already, so nothing has changed. If it was you: an address has one account; sign in with it.
"""
_ASKED = """Somebody who is signed in to Laminar as you wants to sign in with {after} from now on. It is not done yet.

If it was you, there is nothing to do here.

If it was not, somebody has your password. This link ends every session, takes the password away and keeps this address;
it works for {days} days, also when the address has changed:

{link}
"""
_DONE = """You sign in to Laminar with {after} from now on, and no longer with this address.

If that was not you, this link takes it back, ends every session and takes the password away. It works until {until}:

{link}
"""


def tell_of_wish(asked: Asked) -> bool:
    """True if both letters are on their way."""
    change = asked.change
    hours, days = LASTS.total_seconds() / 3_600, CANCELLABLE.days
    proof = _PROVE.format(before=change.before, hours=f"{hours:.0f}", link=proof_link_of(asked.token))
    to_new = send_letter(change.after, "Prove your new address for Laminar", _IS_YOURS if asked.is_taken else proof)
    warning = _ASKED.format(after=change.after, days=days, link=cancel_link_of(change))
    return send_letter(change.before, "Your address for Laminar is about to change", warning) and to_new


def tell_of_move(change: AddressChange) -> bool:
    until = f"{change.asked_at + CANCELLABLE:%d %B %Y}"
    text = _DONE.format(after=change.after, until=until, link=cancel_link_of(change))
    return send_letter(change.before, "Your address for Laminar has changed", text)
