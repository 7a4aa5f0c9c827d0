"""The way to a Postgres over TLS for Postgres' own tools, which may have been built without it: TLS ends here.

    pg_basebackup ── a socket in a folder that is ours alone ── this process ══ TLS ══ Postgres

Invariant: sslmode and sslrootcert of the address are enforced here as libpq enforces them.
"""

import asyncio
import logging
import ssl
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any, Final

from infra.backup.errors import BackupError

log = logging.getLogger(__name__)

_SSL_REQUEST: Final = bytes.fromhex("0000000804d2162f")
_BY_SASL: Final = (10).to_bytes(4)
PIECE: Final = 2**18
OPENS_WITHIN_S: Final = 10.0


@contextmanager
def socket_before(host: str, port: int, options: Mapping[str, Any], *, name: str) -> Iterator[Mapping[str, str]]:
    """Connection settings for a tool: a local socket that leads to `host` over TLS, with a certificate for `name`."""
    context = _checking(options)
    with tempfile.TemporaryDirectory(prefix="laminar-") as folder:
        opened = SimpleQueue[Callable[[], object]]()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(asyncio.CancelledError):  # at the end, of a connection that its tool left open
                try:
                    behind, ahead = await _connected(host, port, context, name)
                except (OSError, asyncio.IncompleteReadError) as error:
                    log.warning("cannot connect to Postgres over TLS: %s", error)
                else:
                    await asyncio.gather(_pump(reader, ahead), _answer(behind, writer))
            writer.close()

        async def until_ended() -> None:
            ended, loop = asyncio.Event(), asyncio.get_running_loop()
            async with await asyncio.start_unix_server(serve, Path(folder) / ".s.PGSQL.5432"):
                opened.put(lambda: loop.call_soon_threadsafe(ended.set))
                await ended.wait()

        thread = Thread(target=lambda: asyncio.run(until_ended()), daemon=True)
        thread.start()
        end = opened.get(timeout=OPENS_WITHIN_S)
        try:
            yield {"host": folder, "port": "5432"}
        finally:
            end()
            thread.join()


def _checking(options: Mapping[str, Any]) -> ssl.SSLContext:
    mode, authorities = options.get("sslmode", "prefer"), options.get("sslrootcert", "")
    if options.get("channel_binding") == "require":
        raise BackupError(
            "channel_binding=require: backup tools connect through a local proxy and cannot bind the channel; remove it"
        )
    context = ssl.create_default_context(cafile=None if authorities in ("", "system") else authorities)
    is_checked = mode in ("verify-ca", "verify-full") or bool(authorities)
    context.check_hostname = mode == "verify-full" or authorities == "system"
    context.verify_mode = ssl.CERT_REQUIRED if is_checked else ssl.CERT_NONE
    if options.get("sslcert"):
        context.load_cert_chain(options["sslcert"], options.get("sslkey"))
    return context


async def _connected(
    host: str, port: int, context: ssl.SSLContext, name: str
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(_SSL_REQUEST)
    if await reader.readexactly(1) != b"S":
        writer.close()
        raise OSError(f"{name} does not support TLS there")
    await writer.start_tls(context, server_hostname=name)
    return reader, writer


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """The server's first words without the ways to sign in that bind a TLS of the tool's own, and then all the others:
    a tool that is offered such a way and has no TLS takes it for an attack.
    """
    kind = b""
    try:
        while kind not in (b"R", b"E"):  # how to sign in, or an error
            kind, length = await reader.readexactly(1), int.from_bytes(await reader.readexactly(4))
            body = await reader.readexactly(length - 4)
            if kind == b"R" and body[:4] == _BY_SASL:
                ways = [way for way in body[4:].split(b"\0") if way and not way.endswith(b"-PLUS")]
                body = _BY_SASL + b"".join(way + b"\0" for way in ways) + b"\0"
            writer.write(kind + (len(body) + 4).to_bytes(4) + body)
    except asyncio.IncompleteReadError:
        return
    await _pump(reader, writer)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while some := await reader.read(PIECE):
            writer.write(some)
            await writer.drain()
    writer.close()
