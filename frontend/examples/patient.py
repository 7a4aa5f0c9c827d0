"""A request that is sent again where that is safe, and not before the server wants it. The client does so by itself."""

import random
import time
from collections.abc import Callable

import httpx

PASSING = {429, 502, 503, 504}


def patiently(
    send: Callable[[], httpx.Response], *, tries: int = 6, sleep: Callable[[float], None] = time.sleep
) -> httpx.Response:
    """`send`: a GET, or a POST with an Idempotency-Key."""
    for number in range(tries):
        try:
            answer = send()
        except httpx.TransportError:
            if number == tries - 1:
                raise
            sleep(random.uniform(0.5, 1) * 2**number)
            continue
        told = answer.headers.get("Retry-After")  # also with 409 `in_flight`: our first request is worked on
        if (answer.status_code not in PASSING and told is None) or number == tries - 1:
            return answer
        sleep(float(told) if told is not None else random.uniform(0.5, 1) * 2**number)
    raise AssertionError("the last try returns or raises")
