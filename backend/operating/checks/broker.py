"""Checks Valkey or Redis: does it answer, is it persistent, and does it have free memory?"""

from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import redis

from backend.environment import Environment
from backend.operating.checks.findings import Fault, Finding, Verdict, good
from backend.operating.checks.near import is_near

_PATIENCE_S: Final = 3
_OLDEST: Final = (6, 2)  # Redis' version numbers, which Valkey continues
_FULL: Final = 0.9

UNREACHABLE = Fault(
    name="broker.unreachable",
    cure="Start Valkey, and check address and password in LAMINAR_BROKER_URL. Until then jobs wait for ticks.",
)
OLD = Fault(name="broker.old", cure="Upgrade it; Laminar is tested with Valkey 9.")
PLAIN = Fault(
    name="broker.plain",
    cure="An attacker on the network can send background tasks: enable TLS, and use rediss:// in LAMINAR_BROKER_URL.",
)
EVICTS = Fault(
    name="broker.evicts",
    cure="When memory runs out it would drop messages silently: set maxmemory-policy to noeviction.",
)
FORGETS = Fault(
    name="broker.forgets",
    verdict=Verdict.WARNING,
    cure="After its restart queued messages wait for the next tick: start it with --appendonly yes.",
)
CANNOT_SAVE = Fault(
    name="broker.cannot_save", cure="It refuses writes when it cannot save: check its log and its disk."
)
FULL = Fault(name="broker.full", cure="Give it more memory (maxmemory), or find out why no worker empties its queues.")


def check_broker(environment: Environment) -> Iterator[Finding]:
    url = environment.broker_url
    client = redis.Redis.from_url(url, socket_timeout=_PATIENCE_S, socket_connect_timeout=_PATIENCE_S)
    try:
        info: Any = client.info()
        yield judge_way(url)
        yield from judge(info, snapshots=_read_snapshot_schedule(client))
    except redis.RedisError as error:
        yield UNREACHABLE.found(f"{urlsplit(url).hostname}: {type(error).__name__}: {error}")
    finally:
        client.close()


def judge(info: Mapping[str, Any], *, snapshots: str) -> Iterator[Finding]:
    """Judges its INFO reply."""
    yield _check_server(info)
    yield _check_policy(info)
    yield _check_persistence(info, snapshots)
    most, used = int(info.get("maxmemory", 0)), int(info.get("used_memory", 0))
    if most and used > _FULL * most:
        yield FULL.found(f"{used / 1e6:.0f} of {most / 1e6:.0f} MB are in use")


def _read_snapshot_schedule(client: redis.Redis) -> str:
    """Its snapshot schedule; managed servers may refuse CONFIG."""
    try:
        reply: Any = client.config_get("save")
    except redis.ResponseError:
        return ""
    return str(reply.get("save", ""))


def _check_server(info: Mapping[str, Any]) -> Finding:
    number = str(info.get("redis_version", "0.0"))
    name = f"Valkey {info['valkey_version']}" if "valkey_version" in info else f"Redis {number}"
    version = tuple(int(part) for part in number.split(".")[:2] if part.isdigit())
    return OLD.found(f"{name}; at least 6.2 is needed") if version < _OLDEST else good(name)


def judge_way(url: str) -> Finding:
    parts = urlsplit(url)
    if parts.scheme in ("rediss", "valkeys"):
        return good("the connection is encrypted")
    host = parts.hostname or ""
    return good("the connection stays on this machine") if is_near(host) else PLAIN.found(f"no TLS to {host}")


def _check_policy(info: Mapping[str, Any]) -> Finding:
    policy = str(info.get("maxmemory_policy", "noeviction"))
    return good("it does not evict") if policy == "noeviction" else EVICTS.found(f"maxmemory-policy is {policy}")


def _check_persistence(info: Mapping[str, Any], snapshots: str) -> Finding:
    if {info.get("rdb_last_bgsave_status", "ok"), info.get("aof_last_write_status", "ok")} != {"ok"}:
        return CANNOT_SAVE.found("its last save failed")
    if info.get("aof_enabled"):
        return good("it is persistent (appendonly)")
    return good("it keeps snapshots") if snapshots else FORGETS.found("it is not persistent")
