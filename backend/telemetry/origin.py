"""The check that only our own pages open a socket. Outermost around every WebSocket route.

Invariant: the Origin is compared to the letter, as browsers write it; a missing, repeated or merely similar one is
refused, and the refusal is logged. Another site's page would come with our user's cookie.
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
