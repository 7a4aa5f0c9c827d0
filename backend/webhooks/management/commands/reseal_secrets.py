"""`manage.py reseal_secrets`: run after changing LAMINAR_SECRET_KEY, before removing the previous key."""

from allauth.mfa.models import Authenticator
from cryptography.fernet import InvalidToken
from django.core.management.base import BaseCommand, CommandError
from django.db import transaction

from backend.accounts import second_factor
from backend.webhooks import secret_box
from backend.webhooks.models import WebhookEndpoint

SEALED = {"secret", "seed"}  # keys in an authenticator's data: TOTP, recovery codes


class Command(BaseCommand):
    help = "Encrypt webhook secrets and second factors again under the current LAMINAR_SECRET_KEY."

    def handle(self, *args: object, **options: object) -> None:
        try:
            with transaction.atomic():
                num_webhooks, num_factors = _reseal_webhooks(), _reseal_factors()
        except InvalidToken as error:
            raise CommandError(
                "a secret is encrypted under a key that is neither LAMINAR_SECRET_KEY nor in "
                "LAMINAR_SECRET_KEYS_OF_BEFORE. Nothing was changed. Add that key there and run this again"
            ) from error
        self.stdout.write(
            f"{num_webhooks} webhooks and {num_factors} second factors are encrypted under the current key. Removing "
            "the previous keys ends the sessions and links that they signed"
        )


def _reseal_webhooks() -> int:
    rows = list(WebhookEndpoint.objects.select_for_update())
    for row in rows:
        row.secret = secret_box.reseal(row.secret)
        row.previous_secret = secret_box.reseal(row.previous_secret) if row.previous_secret else ""
        row.save(update_fields=["secret", "previous_secret"])
    return len(rows)


def _reseal_factors() -> int:
    rows = list(Authenticator.objects.select_for_update().exclude(type=Authenticator.Type.WEBAUTHN))
    for row in rows:
        row.data |= {name: second_factor.reseal(row.data[name]) for name in SEALED & row.data.keys()}
        row.save(update_fields=["data"])
    return len(rows)
