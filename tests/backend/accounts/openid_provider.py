"""A small OpenID provider as a separate process: discovery, keys, the code flow with PKCE, real signatures.

    python -m tests.backend.accounts.openid_provider PORT [CERTIFICATE KEY]

Every sign-in succeeds without a prompt. POST /behave sets its claims and its faults:
{"claims": {…}, "drop": ["email"], "userinfo": {…}, "sign": "key" | "stranger" | "retired" | "none" | "client-secret",
"issuer": "https://…" (of the metadata), "keys": "both" (publishes the retired one, too) | "twice" (two with one id) |
"encryption" (not for signatures) | "none", "lenient": true (accepts a code twice, and from any browser)}.
POST /rotate replaces the signing key.
"""

import base64
import hashlib
import json
import secrets
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa

from infra.local.ports import free_port
from tests.waiting import eventually, is_listening

CLIENT_ID, CLIENT_SECRET = "laminar", "a-client-secret-of-thirty-two-bytes!"
ROOT = Path(__file__).resolve().parents[3]


class Provider:
    def __init__(self, port: int, *, has_tls: bool) -> None:
        self.issuer = f"https://localhost:{port}" if has_tls else f"http://127.0.0.1:{port}"
        self.key, self.retired, self.stranger = _new_key(), _new_key(), _new_key()
        self.num_keys = 1
        self.behaviour: dict[str, Any] = {}
        self.codes: dict[str, dict[str, str]] = {}

    @property
    def kid(self) -> str:
        return f"key-{self.num_keys}"

    def rotate(self) -> None:
        self.key, self.retired = _new_key(), self.key
        self.num_keys += 1

    def discovery(self) -> dict[str, Any]:
        return {
            "issuer": self.behaviour.get("issuer", self.issuer),
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "userinfo_endpoint": f"{self.issuer}/userinfo",
            "jwks_uri": f"{self.issuer}/jwks",
            "response_types_supported": ["code"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["RS256"],
            "token_endpoint_auth_methods_supported": ["client_secret_post", "client_secret_basic"],
            "code_challenge_methods_supported": ["S256"],
        }

    def jwks(self) -> dict[str, Any]:
        newest = _public(self.key) | {"kid": self.kid, "use": "sig"}
        retired = _public(self.retired) | {"kid": f"key-{self.num_keys - 1}", "use": "sig"}
        match self.behaviour.get("keys"):
            case "both":
                return {"keys": [retired, newest]}
            case "twice":
                return {"keys": [newest, _public(self.stranger) | {"kid": self.kid, "use": "sig"}]}
            case "encryption":
                return {"keys": [newest | {"use": "enc"}]}
            case "none":
                return {"keys": []}
        return {"keys": [newest]}

    def authorize(self, query: dict[str, str]) -> str:
        code = secrets.token_urlsafe(16)
        self.codes[code] = query
        return f"{query['redirect_uri']}?{urlencode({'code': code, 'state': query['state']})}"

    def token(self, form: dict[str, str]) -> tuple[int, dict[str, Any]]:
        is_lenient = bool(self.behaviour.get("lenient"))
        grant = self.codes.get(form.get("code", "")) if is_lenient else self.codes.pop(form.get("code", ""), None)
        verifier = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        challenge = base64.urlsafe_b64encode(verifier).decode().rstrip("=")
        is_right = (
            grant is not None
            and (form.get("client_id"), form.get("client_secret")) == (CLIENT_ID, CLIENT_SECRET)
            and form.get("redirect_uri") == grant["redirect_uri"]
            and (is_lenient or grant.get("code_challenge") == challenge)
        )
        if grant is None or not is_right:
            return 400, {"error": "invalid_grant"}
        now = int(time.time())
        claims: dict[str, Any] = {
            "iss": self.issuer, "aud": CLIENT_ID, "sub": "subject-1", "iat": now, "exp": now + 300,
            "nonce": grant.get("nonce", ""), "email": "ada@example.org", "email_verified": True,
        }  # fmt: skip
        claims |= self.behaviour.get("claims", {})
        for name in self.behaviour.get("drop", []):
            claims.pop(name, None)
        return 200, {
            "access_token": secrets.token_urlsafe(16),
            "token_type": "Bearer",
            "id_token": self._signed(claims),
        }

    def _signed(self, claims: dict[str, Any]) -> str:
        match self.behaviour.get("sign", "key"):
            case "none":
                return jwt.encode(claims, "", algorithm="none", headers={"kid": self.kid})
            case "client-secret":
                return jwt.encode(claims, CLIENT_SECRET, algorithm="HS256", headers={"kid": self.kid})
            case "stranger":
                return jwt.encode(claims, self.stranger, algorithm="RS256", headers={"kid": self.kid})
            case "retired":
                return jwt.encode(claims, self.retired, algorithm="RS256", headers={"kid": f"key-{self.num_keys - 1}"})
        return jwt.encode(claims, self.key, algorithm="RS256", headers={"kid": self.kid})


def _new_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65_537, key_size=2_048)


def _public(key: rsa.RSAPrivateKey) -> dict[str, Any]:
    return jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key(), as_dict=True) | {"alg": "RS256"}


def serve(port: int, certificate: Sequence[str]) -> None:
    provider = Provider(port, has_tls=bool(certificate))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            address = urlsplit(self.path)
            match address.path:
                case "/.well-known/openid-configuration":
                    self._answer(200, provider.discovery())
                case "/jwks":
                    self._answer(200, provider.jwks())
                case "/userinfo":
                    self._answer(200, provider.behaviour.get("userinfo", {}))
                case "/authorize":
                    query = {key: values[0] for key, values in parse_qs(address.query).items()}
                    self.send_response(302)
                    self.send_header("Location", provider.authorize(query))
                    self.end_headers()
                case _:
                    self._answer(404, {})

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            if self.path == "/behave":
                provider.behaviour = json.loads(body)
                self._answer(200, {})
            elif self.path == "/rotate":
                provider.rotate()
                self._answer(200, {})
            else:
                self._answer(*provider.token({key: values[0] for key, values in parse_qs(body).items()}))

        def _answer(self, status: int, document: dict[str, Any]) -> None:
            text = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: Any) -> None:
            """Keeps its requests out of the test's output."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    server.serve_forever()


@contextmanager
def running(*certificate: str) -> Iterator[int]:
    """Yields its port. A separate process, since it and the site call each other. `certificate`: chain and key."""
    port = free_port()
    process = subprocess.Popen([sys.executable, "-m", __name__, str(port), *certificate], cwd=ROOT)
    try:
        eventually(partial(is_listening, port), "the provider listens", process=process)
        yield port
    finally:
        process.kill()
        process.wait()


def turn_on(settings: Any, issuer: str, *, ca_file: str = "") -> None:
    """Makes the site use it from now on."""
    app = {
        "provider_id": "sso", "name": "Example", "client_id": CLIENT_ID, "secret": CLIENT_SECRET,
        "settings": {"server_url": issuer, "oauth_pkce_enabled": True},
    }  # fmt: skip
    configured = settings.SOCIALACCOUNT_PROVIDERS["openid_connect"] | {"APPS": [app]}
    settings.SOCIALACCOUNT_PROVIDERS = {"openid_connect": configured}
    settings.ENVIRONMENT = replace(settings.ENVIRONMENT, oidc_issuer=issuer, ca_file=ca_file)


if __name__ == "__main__":
    serve(int(sys.argv[1]), sys.argv[2:])
