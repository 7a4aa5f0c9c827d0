"""The cost of one counted request: Postgres as it is used, and Valkey with the same arithmetic in Lua, side by side.

    python -m infra.local.testing -- python -m tests.bench.site.counters

Both are called over one connection a thread, for keys of its own and for one hot key.
"""

import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

SECONDS = 4.0
_LUA = """
local now = redis.call('TIME'); local t = now[1] + now[2] / 1000000
local full_at = math.max(tonumber(redis.call('GET', KEYS[1]) or '0'), t) + tonumber(ARGV[1])
if full_at > t + tonumber(ARGV[2]) then return 0 end
redis.call('SET', KEYS[1], tostring(full_at), 'EX', ARGV[2]); return 1
"""


def measure(
    ask: Callable[[str], object], close: Callable[[], None], *, threads: int, is_hot: bool
) -> tuple[float, float, float]:
    """Uses a second, and the median and 99th percentile of one in milliseconds."""

    def work(number: int) -> list[float]:
        spent, name = [], "hot" if is_hot else f"key_{number}"
        until = time.perf_counter() + SECONDS
        while (began := time.perf_counter()) < until:
            ask(name)
            spent.append(1_000 * (time.perf_counter() - began))
        close()
        return spent

    with ThreadPoolExecutor(threads) as pool:
        spent = [one for batch in pool.map(work, range(threads)) for one in batch]
    return len(spent) / SECONDS, statistics.median(spent), statistics.quantiles(spent, n=100)[98]


def main(arguments: Sequence[str]) -> int:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "backend.settings")
    import django

    django.setup()
    import redis
    from django.conf import settings
    from django.core.management import call_command
    from django.db import connection

    from backend.api.limits.counters import take

    call_command("migrate", verbosity=0)
    valkey = redis.Redis.from_url(settings.CELERY_BROKER_URL)
    script = valkey.register_script(_LUA)
    ways: dict[str, Callable[[str], object]] = {
        "Postgres, unlogged table": lambda key: take("bench", key, 10**6, 1),
        "Postgres, logged table": lambda key: take("bench", key, 10**6, 1),
        "Valkey, Lua": lambda key: script(keys=[key], args=[1e-6, 1]),
    }
    print(f"{'way':28} {'threads':>7} {'key':>4} {'uses/s':>8} {'p50 ms':>7} {'p99 ms':>7}")
    for way, ask in ways.items():
        if way.startswith("Postgres"):
            with connection.cursor() as db:
                db.execute(f"ALTER TABLE api_ratebucket SET {'UN' if 'unlogged' in way else ''}LOGGED")
        for threads, is_hot in ((1, False), (8, False), (8, True)):
            rate, median, p99 = measure(ask, lambda: connection.close(), threads=threads, is_hot=is_hot)
            print(f"{way:28} {threads:7} {'hot' if is_hot else 'own':>4} {rate:8.0f} {median:7.2f} {p99:7.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
