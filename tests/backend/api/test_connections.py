"""Connections that send nothing, too little or too much are closed; used ones are left alone. A real uvicorn."""

import asyncio
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from websockets.sync.client import connect

from backend.api.limits.connections import HEAD_BYTES, PIECE_BYTES, BoundedHttp
from tests.uvicorn_server import run_uvicorn
from tests.waiting import eventually

SHORT_S = 0.5
ENDS_WITHIN_S = 60.0  # of a busy machine
HEAD = b"POST / HTTP/1.1\r\nHost: x\r\n"
Dial = Callable[[], socket.socket]


class Hasty(BoundedHttp):
    head_within_s = body_within_s = SHORT_S


async def application(scope: Any, receive: Any, send: Any) -> None:
    """Counts a body's bytes; GET /slow answers slowly; a socket echoes."""
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.accept"})
        while (message := await receive())["type"] == "websocket.receive":
            await send({"type": "websocket.send", "text": message["text"]})
        return
    length, more = 0, True
    if scope["path"] == "/slow":
        await asyncio.sleep(2 * SHORT_S)
    while more:
        message = await receive()
        length, more = length + len(message.get("body", b"")), message.get("more_body", False)
    reply = str(length).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(reply))]})
    await send({"type": "http.response.body", "body": reply})


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with run_uvicorn(application, http=Hasty, log_level="error", timeout_keep_alive=60) as url:
        yield int(url.rpartition(":")[2])


@pytest.fixture
def dial(port: int) -> Iterator[Dial]:
    opened: list[socket.socket] = []

    def made() -> socket.socket:
        opened.append(socket.create_connection(("127.0.0.1", port), timeout=ENDS_WITHIN_S))
        return opened[-1]

    yield made
    for connection in opened:
        connection.close()


def read_until_closed(connection: socket.socket) -> bytes:
    received = b""
    try:
        while piece := connection.recv(65_536):
            received += piece
    except ConnectionResetError:
        pass
    return received


def drip(connection: socket.socket, piece: bytes) -> None:
    """Sends a piece now and then, until the server closes."""
    connection.settimeout(SHORT_S / 10)

    def is_closed() -> bool:
        try:
            connection.sendall(piece)
            return connection.recv(1) == b""
        except TimeoutError:
            return False
        except (BrokenPipeError, ConnectionResetError):
            return True

    eventually(is_closed, "the server closes the connection")


def test_silent_connection_is_closed(dial: Dial) -> None:
    assert read_until_closed(dial()) == b""


@pytest.mark.parametrize("begun", [HEAD, HEAD + b"Content-Length: 9\r\n\r\nhalf"])
def test_connection_stopped_midway_is_closed(dial: Dial, begun: bytes) -> None:
    connection = dial()
    connection.sendall(begun)
    assert read_until_closed(connection) == b""


@pytest.mark.parametrize("begun", [HEAD + b"X-Long: ", HEAD + b"Content-Length: 999999\r\n\r\n"])
def test_slow_head_is_cut_off(dial: Dial, begun: bytes) -> None:
    connection = dial()
    connection.sendall(begun)
    drip(connection, b"a")


def test_a_head_without_an_end_is_refused(dial: Dial) -> None:
    connection = dial()
    try:
        connection.sendall(HEAD + b"X-Long: a\r\n" * (2 * HEAD_BYTES // 11))
    except (BrokenPipeError, ConnectionResetError):
        return
    assert read_until_closed(connection)[:12] in {b"HTTP/1.1 400", b""}


def test_long_body_that_keeps_arriving_is_accepted(dial: Dial) -> None:
    connection, pieces = dial(), 6
    connection.sendall(HEAD + b"Content-Length: %d\r\nConnection: close\r\n\r\n" % (pieces * PIECE_BYTES))
    for _ in range(pieces):  # longer in total than one piece may take
        connection.settimeout(SHORT_S / 4)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        connection.sendall(b"a" * PIECE_BYTES)
    connection.settimeout(ENDS_WITHIN_S)
    assert read_until_closed(connection).endswith(b"%d" % (pieces * PIECE_BYTES))


def test_deadline_ignores_waiting_clients_and_paused_reads(dial: Dial) -> None:
    connection, length = dial(), 4 * 1024 * 1024
    begun = HEAD.replace(b"/ ", b"/slow ", 1)
    connection.sendall(begun + b"Content-Length: %d\r\nConnection: close\r\n\r\n" % length + b"a" * length)
    assert read_until_closed(connection).endswith(b"%d" % length)


def test_a_connection_is_used_again_and_again(dial: Dial) -> None:
    connection = dial()
    for _ in range(3):
        connection.sendall(HEAD + b"Content-Length: 4\r\n\r\nabcd")
        assert connection.recv(65_536).startswith(b"HTTP/1.1 200")


def test_an_open_socket_is_left_alone(port: int) -> None:
    with connect(f"ws://127.0.0.1:{port}/", open_timeout=None) as connection:
        with pytest.raises(TimeoutError):
            connection.recv(timeout=3 * SHORT_S)
        connection.send("still here")
        assert connection.recv(timeout=ENDS_WITHIN_S) == "still here"
