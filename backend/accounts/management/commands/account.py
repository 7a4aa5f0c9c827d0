"""`manage.py account reset|move|prove|end ADDRESS …`: account recovery by an operator, without mail.

    account reset ada@example.org                  a single-use link that sets a new password, valid 24 hours
    account move ada@example.org ada@example.net   a single-use link that changes her address, valid 24 hours
    account prove ada@example.org                  marks the address as verified
    account end ada@example.org                    ends every session of hers, with its sockets

Invariants:
- a link is printed and not stored; pass it on to that person only;
- each command writes an entry to the audit log, with the actor `operator`.
"""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from backend.accounts.addresses.change_letters import mail_change_request
from backend.accounts.addresses.changes import proof_link_of, request_change
from backend.accounts.addresses.proved import is_taken, vouch_for
from backend.accounts.models import User
from backend.accounts.people.invitations import EMAIL
from backend.accounts.sessions.ending import end_other_sessions
from backend.accounts.signing_in.chains import record_done
from backend.accounts.signing_in.resets import make_reset, may_reset, reset_link_of
from backend.clock import database_now
from backend.errors import Refusal


class Command(BaseCommand):
    help = "Print single-use links for a user's password or address, verify an address, or end a user's sessions."

    def add_arguments(self, parser: ArgumentParser) -> None:
        acts = parser.add_subparsers(dest="act", required=True)
        for act, description in (
            ("reset", "print a link that sets a new password"),
            ("move", "print a link that changes the account's address"),
            ("prove", "mark the address as verified"),
            ("end", "end every session of this user"),
        ):
            for_act = acts.add_parser(act, help=description)
            for_act.add_argument("address")
            if act == "move":
                for_act.add_argument("to")

    def handle(self, *args: Any, act: str, address: str, to: str = "", **options: Any) -> None:
        user = User.objects.filter(email__iexact=address, is_service=False).first()
        if user is None:
            raise CommandError(f"no account has the address {address}")
        try:
            done = {"reset": self._reset, "move": self._move, "prove": self._prove, "end": self._end}[act](user, to)
            self.stdout.write(done)
        except Refusal as refusal:
            raise CommandError(refusal.detail) from refusal

    def _reset(self, user: User, _: str) -> str:
        if not may_reset(user, by_operator=True):
            raise CommandError(
                f"{user.email} cannot set a password: the account is closed, signs in by OpenID, "
                "or its address is not verified (run `account prove`)"
            )
        return reset_link_of(make_reset(user, now=database_now(), by_operator=True))

    def _move(self, user: User, to: str) -> str:
        if not EMAIL.fullmatch(to):
            raise CommandError(f"{to!r} is not an email address such as ada@example.org")
        if is_taken(to, excluding=user):
            raise CommandError(f"another account uses {to}")
        asked = request_change(user, to, now=database_now(), by_operator=True)
        mail_change_request(asked)
        return proof_link_of(asked.token)

    def _end(self, user: User, _: str) -> str:
        number = end_other_sessions(user, keep=None, now=database_now(), actor="operator")
        return f"ended {number} sessions of {user.email}"

    def _prove(self, user: User, _: str) -> str:
        vouch_for(user)
        record_done(user, "address.proved", now=database_now(), data={"address": user.email}, actor="operator")
        return f"{user.email} is verified"
