"""Small servers that answer wrongly, and the names of the faults that a check finds."""

import threading
from collections.abc import Callable, Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import StreamRequestHandler, ThreadingTCPServer

import pytest

from backend.operating.checks.findings import Finding

Answers = Callable[..., str]


def faults(found: Iterable[Finding]) -> set[str]:
    return {finding.fault for finding in found if finding.fault}


@pytest.fixture
def answering() -> Iterator[Answers]:
    """Starts a web server with one response to every request, or a redirect to `itself`; its address."""
    servers: list[ThreadingHTTPServer] = []

    def start(status: int, location: str = "") -> str:
        class Answering(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(status)
                self.send_header("Content-Length", "0")
                if location:
                    own = f"http://127.0.0.1:{server.server_port}{self.path}"
                    self.send_header("Location", own if location == "itself" else location)
                self.end_headers()

            do_POST = do_GET

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=[0.02], daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


class _Smtp(StreamRequestHandler):
    """Accepts no login, no mail to nobody@…, and no TLS."""

    answers = {
        b"EHLO": b"250-here\r\n250 AUTH PLAIN",
        b"AUTH": b"535 5.7.8 not with that password",
        b"MAIL": b"250 ok",
        b"DATA": b"354 go on",
        b"RSET": b"250 ok",
    }

    def handle(self) -> None:
        self.wfile.write(b"220 here\r\n")
        while line := self.rfile.readline():
            word = line[:4].upper()
            if word == b"QUIT":
                return
            answer = self.answers.get(word, b"250 ok")
            if word == b"RCPT" and b"nobody@" in line:
                answer = b"550 5.1.1 no such mailbox"
            self.wfile.write(answer + b"\r\n")
            if word == b"DATA":
                while self.rfile.readline() != b".\r\n":
                    pass
                self.wfile.write(b"250 taken\r\n")


@pytest.fixture
def smtp_port() -> Iterator[int]:
    ThreadingTCPServer.daemon_threads = True
    with ThreadingTCPServer(("127.0.0.1", 0), _Smtp) as server:
        threading.Thread(target=server.serve_forever, args=[0.02], daemon=True).start()
        yield server.server_address[1]
        server.shutdown()
