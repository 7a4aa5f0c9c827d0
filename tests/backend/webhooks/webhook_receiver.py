"""A real HTTP(S) server on loopback that receives webhooks and can misbehave."""

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

HOST_NAME = "hooks.example.org"
MOST_HUNG_S = 60.0


@dataclass(slots=True)
class Received:
    path: str
    headers: dict[str, str]
    body: str
    server_name: str | None


class Receiver:
    """A receiver. `answers` are used one by one, the last forever. A path of /status/<n> returns that status."""

    def __init__(self, *answers: int, tls_folder: Path | None = None) -> None:
        self.answers = list(answers) or [200]
        self.received: list[Received] = []
        self.server_name: str | None = None
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.port: int = self.server.server_address[1]
        self.is_over = threading.Event()
        self.has_answered = threading.Event()
        self.was_released: list[bool] = []
        """Of each request to /hang: false if it gave up waiting."""
        self.on_request: Callable[[], None] = lambda: None
        self.scheme = "http"
        if tls_folder is not None:
            self.scheme = "https"
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate_of(HOST_NAME, tls_folder))
            context.sni_callback = lambda sock, name, _: setattr(self, "server_name", name)
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}/hook"

    def _handler(receiver) -> type[BaseHTTPRequestHandler]:  # `self` is the handler's below
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                headers = {name.lower(): value for name, value in self.headers.items()}
                receiver.received.append(Received(self.path, headers, body, receiver.server_name))
                receiver.on_request()
                if self.path == "/hang":
                    receiver.was_released.append(receiver.is_over.wait(MOST_HUNG_S))
                    return
                if self.path == "/drip":
                    self._drip()
                    return
                if self.path == "/nonsense":
                    self.connection.sendall(b"\x00\xffhello\r\n\r\n")
                    self.connection.shutdown(socket.SHUT_RDWR)
                    return
                status = receiver.answers.pop(0) if len(receiver.answers) > 1 else receiver.answers[0]
                self.send_response(status)
                if 300 <= status < 400:
                    self.send_header("Location", f"http://127.0.0.1:{receiver.port}/elsewhere")
                self.end_headers()
                receiver.has_answered.set()
                with contextlib.suppress(OSError):
                    self.wfile.write(b"TOP SECRET INSIDE" * 10_000)

            def _drip(self) -> None:
                """Slow loris: sends a byte every now and then, forever."""
                with contextlib.suppress(OSError):
                    self.connection.sendall(b"HTTP/1.1 200 OK\r\nX-Drip: ")
                    while not receiver.is_over.wait(0.05):
                        self.connection.sendall(b"x")

            def log_message(self, format: str, *args: object) -> None:
                pass

        return Handler


@contextlib.contextmanager
def receiving(*answers: int, tls_folder: Path | None = None) -> Iterator[Receiver]:
    receiver = Receiver(*answers, tls_folder=tls_folder)
    thread = threading.Thread(target=receiver.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        receiver.is_over.set()
        receiver.server.shutdown()
        receiver.server.server_close()


def certificate_of(host_name: str, folder: Path) -> Path:
    """Self-signed: key and certificate in one file, for a client to trust."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, host_name)])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host_name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, SHA256())
    )
    path = folder / "certificate.pem"
    path.write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()) + certificate.public_bytes(Encoding.PEM)
    )
    return path
