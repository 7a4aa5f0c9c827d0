"""The site of docker-compose.yml: its .env filled in with secrets of its own, brought up, and waited for."""

import os
import re
import secrets
import ssl
import sys
from collections.abc import Mapping

import httpx

from infra.local.home import write_private
from infra.rehearse.container_engine import compose, containers, not_ready
from infra.rehearse.enclosure import ADDRESS, number
from infra.rehearse.work import Work, stage, until

VERSION = "rehearsed"
BUCKET = "laminar"
OWNER = 10001  # as the site is known in its containers
S3_PORT = 5000
HEALTHY_WITHIN_S = 600.0  # a machine that has other work, too
SECRETS = ("POSTGRES_PASSWORD", "VALKEY_PASSWORD", "LAMINAR_SECRET_KEY", "LAMINAR_RAY_TOKEN")
SITE = {
    "LAMINAR_VERSION": VERSION,
    "COMPOSE_FILE": "docker-compose.yml:infra/backup/compose.yml",
    "COMPOSE_PROFILES": "tls",
    "LAMINAR_TORCH": "cpu",
    "LAMINAR_PUBLIC_URL": "https://localhost",
    "LAMINAR_RAY_SHM": "2gb",
}
STORE = {
    "LAMINAR_STORE_URL": f"s3://{BUCKET}/rehearsal",
    "LAMINAR_STORE_ENDPOINT": f"https://{ADDRESS}:{S3_PORT}",
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
}


def write_environment(work: Work) -> None:
    """Once: the secrets stay as long as the data that they guard."""
    if work.environment_file.exists():
        return
    make_certificate(work)
    made = {name: secrets.token_hex(24) for name in SECRETS}
    values = made | STORE | SITE
    values |= {"LAMINAR_TLS_CERTIFICATE_FILE": str(work.certificate), "LAMINAR_TLS_KEY_FILE": str(work.key)}
    values["AWS_CA_BUNDLE"] = str(work.certificate)
    values["LAMINAR_BACKUP_DIR"] = str(work.backups)
    work.backups.mkdir(mode=0o700)
    os.chown(work.backups, OWNER, OWNER)
    example = (work.project / ".env.example").read_text()
    write_private(work.environment_file, filled_in(example, values))


def make_certificate(work: Work) -> None:
    """Of the site and of the bucket; of an authority that the rehearsal's customer and its containers believe in."""
    names = ["-subj", "/CN=localhost", "-addext", f"subjectAltName=DNS:localhost,IP:{ADDRESS}"]
    files = ["-keyout", str(work.key), "-out", str(work.certificate)]
    work.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "30", *names, *files])


def filled_in(example: str, values: Mapping[str, str]) -> str:
    """The example with these values, each in its own line."""
    for name, value in values.items():
        pieces = re.split(rf"^{name}=.*$", example, flags=re.MULTILINE)
        if len(pieces) != 2:
            raise ValueError(f".env.example must have one line {name}=, got {len(pieces) - 1}")
        example = f"{name}={value}".join(pieces)
    return example


def set_values(work: Work, **values: str) -> None:
    write_private(work.environment_file, filled_in(work.environment_file.read_text(), values))


def value_of(work: Work, name: str) -> str:
    [value] = re.findall(rf"^{name}=(.*)$", work.environment_file.read_text(), re.MULTILINE)
    return str(value)


def bring_up(work: Work) -> None:
    write_environment(work)
    start_bucket(work)
    with stage("docker compose up"):
        compose(work, "up", "--detach", "--no-build")
    with stage("every service is healthy"):
        wait_until_healthy(work)


def wait_until_healthy(work: Work) -> None:
    wanted = set(compose(work, "config", "--services").split())
    until(lambda: not_ready(containers(work), wanted), within_s=HEALTHY_WITHIN_S, what="docker compose up")


def start_bucket(work: Work) -> None:
    """S3 as somebody else serves it, over TLS: moto's, which forgets everything at its end."""
    with stage("a bucket on an S3 of its own, over TLS"):
        if not _has_bucket(work):
            ours = ["nsenter", f"--target={number(work)}", "--net", "--pid", sys.executable]
            tls = ["--ssl-cert", str(work.certificate), "--ssl-key", str(work.key)]
            work.start([*ours, "-m", "moto.server", "--host", "0.0.0.0", "--port", str(S3_PORT), *tls], "s3")
            until(lambda: "" if _has_bucket(work) else "no answer", within_s=120, what="moto")


def list_bucket(work: Work, method: str, **query: str) -> httpx.Response:
    believed = ssl.create_default_context(cafile=work.certificate)
    address = f"{STORE['LAMINAR_STORE_ENDPOINT']}/{BUCKET}"
    return httpx.request(method, address, params=query, verify=believed, timeout=30)


def _has_bucket(work: Work) -> bool:
    try:
        return list_bucket(work, "PUT").status_code in (200, 409)
    except httpx.TransportError:
        return False
