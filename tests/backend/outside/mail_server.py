"""A minimal mail server: STARTTLS or immediate TLS, a password, and the mails it received."""

import asyncio
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from tests.serving import serving


@dataclass(slots=True)
class MailServer:
    port: int = 0
    letters: list[str] = field(default_factory=list)
    passwords: list[str] = field(default_factory=list)
    """As received, in base64."""
    in_the_clear: list[str] = field(default_factory=list)
    """Commands other than EHLO, STARTTLS and QUIT that were sent before TLS."""


@contextmanager
def mail_server(context: ssl.SSLContext, *, at_once: bool) -> Iterator[MailServer]:
    """`at_once`: TLS from the first byte; else by STARTTLS."""
    served = MailServer()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, ssl.SSLError, asyncio.IncompleteReadError):
            await _serve(served, reader, writer, None if at_once else context)
        writer.close()

    with serving(serve, context if at_once else None) as served.port:
        yield served


async def _serve(
    served: MailServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, context: ssl.SSLContext | None
) -> None:
    writer.write(b"220 here\r\n")
    while command := (await reader.readline()).decode().strip():
        verb = command.split(" ")[0].upper()
        if context is not None and verb not in {"EHLO", "STARTTLS", "QUIT"}:
            served.in_the_clear.append(command)
        match verb:
            case "EHLO":
                offered = b"STARTTLS" if context is not None else b"AUTH PLAIN"
                writer.write(b"250-here\r\n250 " + offered + b"\r\n")
            case "STARTTLS":
                assert context is not None
                writer.write(b"220 go on\r\n")
                await writer.drain()
                await writer.start_tls(context)
                context = None
            case "AUTH":
                served.passwords.append(command.rpartition(" ")[2])
                writer.write(b"235 welcome\r\n")
            case "DATA":
                writer.write(b"354 go on\r\n")
                served.letters.append((await reader.readuntil(b"\r\n.\r\n")).decode())
                writer.write(b"250 taken\r\n")
            case "QUIT":
                writer.write(b"221 bye\r\n")
                return
            case _:
                writer.write(b"250 fine\r\n")
        await writer.drain()
