"""Whether beat or a worker gives a sign of life, asked by plain clients: a container's health check asks twice a
minute, and to load Django for it would cost more than what it looks after.

Invariant: nobody is called silent who could not have been heard: while the database, the broker, or (of a worker) beat,
which asks it, is away, there is no answer.
"""

from math import inf

import psycopg
import redis

from backend.environment import Environment
from backend.pulses import AGES, LATE_AFTER_S, PULSES

_PATIENCE_S = 3


class CannotHear(Exception):
    """What a sign of life comes through is away."""


def silence_of(part: str, environment: Environment) -> str:
    """What one says of who is silent; empty: it was heard of."""
    ages = _ages(environment.database_url)
    late = {each for each, name in PULSES.items() if ages.get(name, inf) > LATE_AFTER_S}
    if part not in late:
        return ""
    if not _answers(environment.broker_url):
        raise CannotHear(f"{part} cannot be heard: the broker does not answer")
    if part != "beat" and "beat" in late:
        raise CannotHear(f"{part} cannot be heard: beat, which asks it, is silent itself")
    heard = f"{ages[PULSES[part]]:.0f} s ago" if PULSES[part] in ages else "never"
    return f"{part} was heard of {heard}; a healthy one is within {LATE_AFTER_S:.0f} s"


def _ages(url: str) -> dict[str, float]:
    try:
        with psycopg.connect(url, connect_timeout=_PATIENCE_S, client_encoding="utf8") as db:
            return {name: float(age) for name, age in db.execute(AGES, [list(PULSES.values())])}
    except psycopg.Error as error:
        raise CannotHear("the database does not answer") from error


def _answers(url: str) -> bool:
    try:
        with redis.Redis.from_url(url, socket_timeout=_PATIENCE_S, socket_connect_timeout=_PATIENCE_S) as client:
            return bool(client.ping())
    except redis.RedisError:
        return False
