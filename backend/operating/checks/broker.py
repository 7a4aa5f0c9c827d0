"""Valkey or Redis: does it answer, does it keep what it was given, and have room for more?"""

from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import redis

from backend.environment import Environment
from backend.operating.checks.findings import Fault, Finding, Verdict, good
from backend.operating.checks.near import is_near

_PATIENCE_S: Final = 3
_OLDEST: Final = (6, 2)  # of Redis' numbers, which Valkey goes on with
_FULL: Final = 0.9

UNREACHABLE = Fault(
    name="broker.unreachable",
    cure="Start Valkey, and see to address and password in LAMINAR_BROKER_URL. Until then jobs wait for ticks.",
)
OLD = Fault(name="broker.old", cure="Upgrade it; Laminar is tested with Valkey 9.")
PLAIN = Fault(
    name="broker.plain",
    cure="Whoever is on the way may send background tasks: switch TLS on, and write rediss:// in LAMINAR_BROKER_URL.",
)
EVICTS = Fault(
    name="broker.evicts",
    cure="When memory runs out it would throw messages away in silence: set maxmemory-policy to noeviction.",
)
FORGETS = Fault(
    name="broker.forgets",
    verdict=Verdict.WARNING,
    cure="After its restart what was in line waits for the next tick: start it with --appendonly yes.",
)
CANNOT_SAVE = Fault(name="broker.cannot_save", cure="It refuses writes when it cannot save: see its log and its disk.")
FULL = Fault(name="broker.full", cure="Give it more memory (maxmemory), or see why no worker empties its queues.")


def look_at_broker(environment: Environment) -> Iterator[Finding]:
    url = environment.broker_url
    client = redis.Redis.from_url(url, socket_timeout=_PATIENCE_S, socket_connect_timeout=_PATIENCE_S)
    try:
        told: Any = client.info()
        yield judge_way(url)
        yield from judge(told, snapshots=_snapshots(client))
    except redis.RedisError as error:
        yield UNREACHABLE.found(f"{urlsplit(url).hostname}: {type(error).__name__}: {error}")
    finally:
        client.close()


def judge(told: Mapping[str, Any], *, snapshots: str) -> Iterator[Finding]:
    """By what it tells of itself."""
    yield _server(told)
    yield _policy(told)
    yield _keeping(told, snapshots)
    most, used = int(told.get("maxmemory", 0)), int(told.get("used_memory", 0))
    if most and used > _FULL * most:
        yield FULL.found(f"{used / 1e6:.0f} of {most / 1e6:.0f} MB are in use")


def _snapshots(client: redis.Redis) -> str:
    """How often it takes one; servers of the big providers answer no such question."""
    try:
        asked: Any = client.config_get("save")
    except redis.ResponseError:
        return ""
    return str(asked.get("save", ""))


def _server(told: Mapping[str, Any]) -> Finding:
    spoken = str(told.get("redis_version", "0.0"))
    name = f"Valkey {told['valkey_version']}" if "valkey_version" in told else f"Redis {spoken}"
    version = tuple(int(part) for part in spoken.split(".")[:2] if part.isdigit())
    return OLD.found(f"{name}; at least 6.2 is needed") if version < _OLDEST else good(name)


def judge_way(url: str) -> Finding:
    parts = urlsplit(url)
    if parts.scheme in ("rediss", "valkeys"):
        return good("the way to it is encrypted")
    host = parts.hostname or ""
    return good("the way to it stays on this machine") if is_near(host) else PLAIN.found(f"no TLS on the way to {host}")


def _policy(told: Mapping[str, Any]) -> Finding:
    policy = str(told.get("maxmemory_policy", "noeviction"))
    return good("it evicts nothing") if policy == "noeviction" else EVICTS.found(f"maxmemory-policy is {policy}")


def _keeping(told: Mapping[str, Any], snapshots: str) -> Finding:
    if {told.get("rdb_last_bgsave_status", "ok"), told.get("aof_last_write_status", "ok")} != {"ok"}:
        return CANNOT_SAVE.found("its last try to save failed")
    if told.get("aof_enabled"):
        return good("it keeps what it is given (appendonly)")
    return good("it keeps snapshots") if snapshots else FORGETS.found("it keeps nothing on disk")
