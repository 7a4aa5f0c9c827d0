"""A real uvicorn in a thread of this process."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.waiting import eventually

_ENDS_WITHIN_S = 120.0


@contextmanager
def run_uvicorn(application: Any, **options: Any) -> Iterator[str]:
    """Yields its address, `http://127.0.0.1:PORT`. `options`: of `uvicorn.Config`."""
    import uvicorn  # only the tests that serve pay for it

    defaults: dict[str, Any] = {"host": "127.0.0.1", "port": 0, "lifespan": "off", "log_level": "warning"}
    web = uvicorn.Server(uvicorn.Config(application, **(defaults | options)))
    thread = threading.Thread(target=web.run, daemon=True)
    thread.start()
    eventually(lambda: web.started, "uvicorn listens")
    try:
        yield f"http://127.0.0.1:{web.servers[0].sockets[0].getsockname()[1]}"
    finally:
        web.should_exit = True
        thread.join(_ENDS_WITHIN_S)
