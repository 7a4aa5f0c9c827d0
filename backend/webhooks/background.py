"""Periodic tasks of webhooks. Beat runs the sender every few seconds and nothing else does: a message waits for one
tick at most, and no trigger can get lost."""

from celery import shared_task
from django.conf import settings

from backend.clock import database_now
from backend.webhooks.addresses import GuardedNetwork
from backend.webhooks.fan_out import AT_ONCE, fan_out
from backend.webhooks.sending import send_due
from backend.webhooks.services import forget_old_deliveries
from backend.webhooks.transport import Courier


@shared_task(name="webhooks.send")
def send() -> None:
    while fan_out(now=database_now()) == AT_ONCE:
        pass
    loopback = settings.ENVIRONMENT.webhooks_to_loopback
    send_due(Courier(GuardedNetwork(allow_loopback=loopback), allow_loopback=loopback), clock=database_now)


@shared_task(name="webhooks.forget")
def forget() -> None:
    forget_old_deliveries(now=database_now())
