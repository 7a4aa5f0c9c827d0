"""OWASP ASVS 5, chapter 4.2: a sender cannot blur where a request ends and the next begins. A real uvicorn."""

import socket
from urllib.parse import urlsplit

import pytest

HIDDEN = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
CHUNKED = b"0\r\n\r\n"


@pytest.mark.parametrize(
    "headers",
    [
        b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
        b"Content-Length: 5\r\nContent-Length: 50\r\n",
        b"Transfer-Encoding: xchunked\r\n",
        b"Transfer-Encoding: chunked, identity\r\n",
        b"Content-Length: +5\r\n",
        b"Content-Length : 5\r\n",
        b"X-One: a\r\n\tTransfer-Encoding: chunked\r\nContent-Length: -1\r\n",
    ],
)
def test_request_with_ambiguous_length_is_refused(web_server: str, headers: bytes) -> None:
    request = b"POST /api/v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\n" + headers + b"\r\n" + CHUNKED + HIDDEN
    answers = exchanged(web_server, request)
    assert answers.startswith(b"HTTP/1.1 400"), answers[:200]
    assert answers.count(b"HTTP/1.1 ") == 1 and b'"status": "ok"' not in answers, "no hidden request was handled"


def test_an_ordinary_request_is_answered(web_server: str) -> None:
    assert exchanged(web_server, HIDDEN.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")).startswith(
        b"HTTP/1.1 200"
    )


def exchanged(server: str, request: bytes) -> bytes:
    address = urlsplit(server)
    with socket.create_connection((address.hostname or "", address.port or 0), timeout=60) as connection:
        connection.sendall(request)
        received = b""
        while piece := connection.recv(65_536):
            received += piece
    return received
