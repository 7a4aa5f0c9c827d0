"""Only our own pages may open a socket: the outermost check around every WebSocket route.

Invariant: the Origin is compared exactly, as browsers write it; a missing, repeated or merely similar one is refused
and the refusal is logged. A page of another site would come with our user's cookie.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Any

log = logging.getLogger(__name__)


App = Callable[[Any, Any, Any], Awaitable[None]]


def only_from(origin: str, app: App) -> App:
    async def guarded(scope: Any, receive: Any, send: Any) -> None:
        origins = [value.decode("latin-1") for name, value in scope["headers"] if name == b"origin"]
        if origins == [origin]:
            return await app(scope, receive, send)
        log.warning("websocket refused path=%s origin=%s", scope["path"], ascii(origins)[:200])
        return await refuse(scope, receive, send)

    return guarded


async def refuse(scope: Any, receive: Any, send: Any) -> None:
    await receive()  # websocket.connect
    await send({"type": "websocket.close"})
