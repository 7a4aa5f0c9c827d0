"""A pooler in transaction mode in front of a real Postgres: a connection gets any free server process, and returns it
when its transaction ends. It implements as much of the protocol as psycopg needs."""

import os
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit, urlunsplit

import psycopg.pq

_SSL_REQUEST = 80877103


class TransactionPooler:
    def __init__(self, url: str, *, num_servers: int = 3) -> None:
        self._conns = [psycopg.pq.PGconn.connect(url.encode()) for _ in range(num_servers)]
        self._servers = [socket.socket(fileno=os.dup(conn.socket)) for conn in self._conns]
        for each in self._servers:
            each.setblocking(True)
        self._idle = list(self._servers)
        self._door = socket.create_server(("127.0.0.1", 0))
        parts = urlsplit(url)
        place = f"{parts.netloc.rpartition('@')[0]}@127.0.0.1:{self._door.getsockname()[1]}"
        self.url = urlunsplit(parts._replace(netloc=place))
        threading.Thread(target=self._admit, daemon=True).start()

    def close(self) -> None:
        self._door.close()
        for server in self._servers:
            server.close()
        for conn in self._conns:
            conn.finish()

    def _admit(self) -> None:
        while True:
            try:
                client, _ = self._door.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, client.makefile("rb") as stream:
            while (words := stream.read(struct.unpack("!i", stream.read(4))[0] - 4))[:4] == struct.pack(
                "!i", _SSL_REQUEST
            ):
                client.sendall(b"N")
            client.sendall(_message(b"R", struct.pack("!i", 0)) + _message(b"S", b"client_encoding\0UTF8\0"))
            client.sendall(_message(b"S", b"server_version\0" + b"18.0\0") + _message(b"K", struct.pack("!ii", 1, 1)))
            client.sendall(_message(b"Z", b"I"))
            server: socket.socket | None = None
            while words:
                if (kind := stream.read(1)) in (b"", b"X"):
                    break
                size = stream.read(4)
                server = server or self._idle.pop()
                server.sendall(kind + size + stream.read(struct.unpack("!i", size)[0] - 4))
                if kind in (b"Q", b"S") and self._answer(server, client) == b"I":
                    self._idle.append(server)
                    server = None
            if server is not None:
                server.sendall(_message(b"Q", b"ROLLBACK\0"))
                self._answer(server, None)
                self._idle.append(server)

    def _answer(self, server: socket.socket, client: socket.socket | None) -> bytes:
        """Reads until the server is ready; returns whether it is in a transaction."""
        while True:
            kind, size = _exactly(server, 1), _exactly(server, 4)
            body = _exactly(server, struct.unpack("!i", size)[0] - 4)
            if client is not None:
                client.sendall(kind + size + body)
            if kind == b"Z":
                return body


def _message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!i", len(body) + 4) + body


def _exactly(source: socket.socket, count: int) -> bytes:
    content = b""
    while len(content) < count:
        content += source.recv(count - len(content)) or b"\0" * count
    return content


@contextmanager
def pooling(url: str) -> Iterator[str]:
    pooler = TransactionPooler(url)
    try:
        yield pooler.url
    finally:
        pooler.close()
