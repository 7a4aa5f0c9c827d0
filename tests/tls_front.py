"""TLS before a server that speaks none: what clients check of a server, they check of this.

It terminates TLS and forwards every byte. In front of Postgres it answers libpq's SSLRequest first; in front of a mail
server it sends nothing first, since the client begins with TLS.
"""

import asyncio
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from tests.serving import serving

_SSL_REQUEST: Final = bytes.fromhex("0000000804d2162f")


@contextmanager
def tls_before(port: int, context: ssl.SSLContext, *, of_postgres: bool = False) -> Iterator[int]:
    """The port on which 127.0.0.1 speaks TLS for that of `port`."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError, ssl.SSLError):
            if of_postgres:
                if await reader.readexactly(8) != _SSL_REQUEST:
                    writer.close()  # a client that would speak in the clear
                    return
                writer.write(b"S")
                await writer.drain()
            await writer.start_tls(context)
            behind, ahead = await asyncio.open_connection("127.0.0.1", port)
            await asyncio.gather(_pump(reader, ahead), _pump(behind, writer))
        writer.close()

    with serving(serve) as front:
        yield front


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError, ssl.SSLError):
        while some := await reader.read(65_536):
            writer.write(some)
            await writer.drain()
    writer.close()
