"""Checks the site itself: its secrets, its operators, its pools."""

from collections.abc import Iterator
from typing import Final

from backend.accounts.models import User
from backend.accounts.rights import has_second_factor
from backend.environment import Environment
from backend.jobs.attempts.launcher import read_token
from backend.operating.checks.findings import Fault, Finding, Verdict, good
from backend.pools.clusters.dashboard import RayRefused
from backend.pools.models import ResourcePool

_LEAST: Final = 32
"""Characters of a secret: 128 bits, as hexadecimal digits."""

DEBUG = Fault(name="site.debug", cure="Tracebacks reveal secrets to strangers: set LAMINAR_DEBUG=0.")
SHORT_SECRET = Fault(
    name="site.short_secret",
    cure='Generate one with python3 -c "import secrets; print(secrets.token_hex(32))" and set it; a new '
    "LAMINAR_SECRET_KEY signs all users out.",
)
NOBODY = Fault(name="site.nobody", cure="Run `python manage.py bootstrap`: it creates the first operator.")
NO_POOL = Fault(name="site.no_pool", cure="Run `python manage.py bootstrap`: it creates a pool of Ray's devices.")
NO_SECOND_FACTOR = Fault(
    name="site.no_second_factor",
    verdict=Verdict.WARNING,
    cure="An operator's password alone gives full access: set up a second factor for each at /accounts/2fa/.",
)


def check_site(environment: Environment) -> Iterator[Finding]:
    yield DEBUG.found("LAMINAR_DEBUG is 1") if environment.debug else good("no tracebacks are shown")
    short = [name for name, text in _read_secrets(environment).items() if len(text) < _LEAST or len(set(text)) < 8]
    yield (
        SHORT_SECRET.found(f"shorter than {_LEAST} characters, or of few different ones: {', '.join(short)}")
        if short
        else good("secrets are long enough")
    )
    yield from _check_operators()
    if not ResourcePool.objects.exists():
        yield NO_POOL.found("there is no pool of devices, so no job can start")


def _read_secrets(environment: Environment) -> dict[str, str]:
    try:
        token = read_token(environment.ray_token_file)
    except RayRefused:  # reported by the check of Ray
        token = ""
    secrets = {
        "LAMINAR_SECRET_KEY": environment.secret_key,
        "LAMINAR_RAY_TOKEN_FILE": token,
        "LAMINAR_METRICS_TOKEN": environment.metrics_token,
    }
    return {name: text for name, text in secrets.items() if text or name == "LAMINAR_SECRET_KEY"}


def _check_operators() -> Iterator[Finding]:
    operators = list(User.objects.filter(is_staff=True, is_active=True).order_by("email"))
    if not operators:
        yield NOBODY.found("this site has no operator")
        return
    bare = [user.email for user in operators if not has_second_factor(user)]
    if bare:
        yield NO_SECOND_FACTOR.found(f"without a second factor: {', '.join(bare)}")
    else:
        yield good(f"{len(operators)} operators, all with a second factor")
