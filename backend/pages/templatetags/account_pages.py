"""Facts about this site for account pages."""

from django import template
from django.conf import settings

from backend.accounts.letters import has_mail as site_has_mail
from backend.accounts.signing_in.first_person import first_person

register = template.Library()


@register.simple_tag
def has_mail() -> bool:
    return site_has_mail()


@register.simple_tag
def is_sign_up_open() -> bool:
    return bool(settings.ENVIRONMENT.open_sign_up)


@register.simple_tag
def has_no_users() -> bool:
    return not first_person.is_there()
