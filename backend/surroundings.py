"""The services around the web processes, as last seen: beat and worker, the pools' Rays, the store.

    worker ──probes, every 30 s──▶ Ray, store      web ──reads the rows──▶ /readyz, /metrics

Invariants:
- a web process queries only Postgres: a hanging Ray or store makes no request wait;
- a service without a recent probe is unknown, neither well nor away: then the worker's own silence is reported;
- no pool name, no address and no text of users is reported.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Protocol

from backend.pulses import AGES, LATE_AFTER_S, PULSES

OLD_AFTER_S: Final = 120.0
"""Four probes; a busy worker is late for one."""
_RAYS: Final = """
SELECT count(*), count(*) FILTER (WHERE problem = ''), extract(epoch FROM clock_timestamp() - max(at))
FROM pools_clusterprobe
"""
STORE: Final = """
SELECT jsonb_path_exists(parts, '$[*].findings[*] ? (@.verdict == "wrong")'),
       extract(epoch FROM clock_timestamp() - ended_at),
       extract(epoch FROM clock_timestamp() - began_at), began_at > coalesce(ended_at, '-infinity')
FROM operating_examination WHERE name = 'store'
"""


class _Rows(Protocol):
    def fetchall(self) -> list[tuple[Any, ...]]: ...


class Database(Protocol):
    def execute(self, sql: Any, parameters: Any = ...) -> _Rows: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Surrounding:
    name: str
    is_well: bool | None
    """None: unknown."""
    trouble: str = ""
    age_s: float | None = None
    """Since the last heartbeat of beat or worker."""


def surroundings(db: Database) -> Iterator[Surrounding]:
    age = {name: float(age) for name, age in db.execute(AGES, [list(PULSES.values())]).fetchall()}
    yield from (_judge_pulse(part, age.get(name)) for part, name in PULSES.items())
    ((num_pools, num_well, age_s),) = db.execute(_RAYS).fetchall()
    yield _judge_ray(num_pools, num_well, age_s)
    is_away = store_is_away(db.execute(STORE).fetchall())
    trouble = "fails to write or to read back files; run `manage.py doctor` for details" if is_away else ""
    yield Surrounding(name="store", is_well=None if is_away is None else not is_away, trouble=trouble)


def store_is_away(rows: list[tuple[Any, ...]]) -> bool | None:
    """By the rows of `STORE`. A probe that begins and never ends means that the store hangs."""
    if not rows:
        return None
    ((has_failed, ended_s, began_s, is_looking),) = rows
    if ended_s is not None and ended_s < OLD_AFTER_S:
        return bool(has_failed)
    return True if is_looking and (ended_s is not None or began_s > OLD_AFTER_S) else None


def _judge_pulse(part: str, age_s: float | None) -> Surrounding:
    if age_s is None:
        return Surrounding(name=part, is_well=None, trouble="has sent no heartbeat yet; check its log")
    late = f"has sent no heartbeat for {age_s:.0f} s; check its log and the broker's" if age_s > LATE_AFTER_S else ""
    return Surrounding(name=part, is_well=not late, trouble=late, age_s=round(age_s, 1))


def _judge_ray(num_pools: int, num_well: int, age_s: float | None) -> Surrounding:
    if age_s is None or age_s > OLD_AFTER_S:
        return Surrounding(name="ray", is_well=None)
    away = num_pools - num_well
    trouble = f"does not respond for {away} of {num_pools} pools; run `manage.py doctor` for details" if away else ""
    return Surrounding(name="ray", is_well=not away, trouble=trouble)
