"""Liveness of beat and the worker, checked with plain clients: a container's health check runs twice a minute, and
loading Django for it would cost more than the process it checks.

Invariant: a component is reported silent only if its heartbeat could have arrived: while the database, the broker, or
(for a worker) beat, which sends its canary, is away, there is no verdict.
"""

from math import inf

import psycopg
import redis

from backend.environment import Environment
from backend.pulses import AGES, LATE_AFTER_S, PULSES

_PATIENCE_S = 3


class HeartbeatUnknown(Exception):
    """The path of the heartbeats is down."""


def silence_of(part: str, environment: Environment) -> str:
    """Describes a silent component; empty if its heartbeat is recent."""
    ages = _read_ages(environment.database_url)
    late = {each for each, name in PULSES.items() if ages.get(name, inf) > LATE_AFTER_S}
    if part not in late:
        return ""
    if not _answers(environment.broker_url):
        raise HeartbeatUnknown(f"the heartbeat of {part} is unknown: the broker does not respond")
    if part != "beat" and "beat" in late:
        raise HeartbeatUnknown(f"the heartbeat of {part} is unknown: beat, which sends its canary, is silent")
    age = f"{ages[PULSES[part]]:.0f} s ago" if PULSES[part] in ages else "never"
    return f"last heartbeat of {part}: {age} (limit {LATE_AFTER_S:.0f} s)"


def _read_ages(url: str) -> dict[str, float]:
    try:
        with psycopg.connect(url, connect_timeout=_PATIENCE_S, client_encoding="utf8") as db:
            return {name: float(age) for name, age in db.execute(AGES, [list(PULSES.values())])}
    except psycopg.Error as error:
        raise HeartbeatUnknown("the database does not respond") from error


def _answers(url: str) -> bool:
    try:
        with redis.Redis.from_url(url, socket_timeout=_PATIENCE_S, socket_connect_timeout=_PATIENCE_S) as client:
            return bool(client.ping())
    except redis.RedisError:
        return False
