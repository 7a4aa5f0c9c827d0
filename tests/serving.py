"""A server of asyncio on a thread of its own, for tests that speak to it from theirs."""

import asyncio
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextmanager
def serving(serve: Serve, context: ssl.SSLContext | None = None) -> Iterator[int]:
    """The port on 127.0.0.1. `context`: TLS from the first byte."""
    loop, started = asyncio.new_event_loop(), threading.Event()
    ports: list[int] = []

    async def listen() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
        ports.append(server.sockets[0].getsockname()[1])
        started.set()

    def run() -> None:
        loop.set_exception_handler(lambda *_: None)  # a client that refuses us is what is tested
        listening = loop.create_task(listen())
        loop.run_forever()
        assert listening.done()
        for left in asyncio.all_tasks(loop):
            left.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    started.wait()
    yield ports[0]
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
