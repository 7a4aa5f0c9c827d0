"""What an operator writes into .env reaches the containers that want it, files too, and nothing that breaks them."""

import os
import re
import subprocess
import sys
import tomllib

import pytest

from infra.local.services.ray_head import PASSED_ON
from tests.infra.containers.compose_file import ROOT, compose, services

PLANES = ["web", "worker", "beat", "ray-head", "ray-worker"]
AWS = [
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_DEFAULT_REGION", "AWS_REGION"),
    "AWS_ROLE_ARN",
]
# Variable, the secret that is mounted, who has it.
FILES = [
    ("LAMINAR_OIDC_SECRET_FILE", "oidc_secret", "web"),
    ("LAMINAR_CA_FILE", "own_authorities", "worker"),
    ("LAMINAR_AUDIT_KEY_FILE", "audit_key", "worker"),
    ("LAMINAR_METRICS_TOKEN_FILE", "metrics_token", "web"),
    ("AWS_WEB_IDENTITY_TOKEN_FILE", "web_identity", "ray-worker"),
    ("AWS_WEB_IDENTITY_TOKEN_FILE", "web_identity", "web"),
    ("AWS_SHARED_CREDENTIALS_FILE", "aws_credentials", "ray-head"),
    ("AWS_SHARED_CREDENTIALS_FILE", "aws_credentials", "worker"),
    ("LAMINAR_BREACHED_PASSWORDS_FILE", "breached_passwords", "web"),
]


@pytest.mark.parametrize("name", AWS)
@pytest.mark.parametrize("service", PLANES)
def test_the_stores_key_and_region_reach_both_planes(service: str, name: str) -> None:
    assert services(**{name: "given"})[service]["environment"][name] == "given"


def test_a_region_by_either_name_is_the_region() -> None:
    for name in ("AWS_DEFAULT_REGION", "AWS_REGION"):
        environment = services(**{name: "eu-central-1"})["ray-head"]["environment"]
        assert {environment["AWS_DEFAULT_REGION"], environment["AWS_REGION"]} == {"eu-central-1"}


@pytest.mark.long
@pytest.mark.parametrize("service", ["web", "ray-head"])
def test_store_client_starts_with_unset_variables(service: str) -> None:
    """An empty region or bundle would not: the real client is made with the variables of the container."""
    environment = services()[service]["environment"]
    given = {name: value for name, value in environment.items() if name.startswith("AWS_")}
    make = "import boto3; made = boto3.client('s3'); print(made.meta.endpoint_url, made._request_signer._credentials)"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    nobody = {"AWS_EC2_METADATA_DISABLED": "true", "HOME": "/nonexistent"}
    done = subprocess.run(
        [sys.executable, "-c", make], env=kept | given | nobody, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["https://s3.us-east-1.amazonaws.com", "None"] or "s3" in done.stdout, done.stdout
    assert done.stdout.split()[-1] == "None", "an empty key is no key: the client would look for the machine's role"


@pytest.mark.parametrize("service", PLANES)
def test_own_stores_certificates_are_mounted_for_its_client(service: str) -> None:
    whole = compose(AWS_CA_BUNDLE="/etc/our/ca.pem")
    looked_for = whole["services"][service]["environment"]["AWS_CA_BUNDLE"]
    (mounted,) = [each for each in whole["services"][service]["secrets"] if isinstance(each, dict)]
    assert mounted["target"] == looked_for and whole["secrets"][mounted["source"]]["file"] == "/etc/our/ca.pem"
    assert services()[service]["environment"]["AWS_CA_BUNDLE"] == "/etc/ssl/certs/ca-certificates.crt"


@pytest.mark.parametrize("service", ["migrate", "web", "worker", "beat"])
def test_own_database_and_broker_replace_the_bundled_ones(service: str) -> None:
    own = {
        "LAMINAR_DATABASE_URL": "postgresql://us@pooler.example.org/db?sslmode=verify-full",
        "LAMINAR_DATABASE_DIRECT_URL": "postgresql://us@db.example.org/db?sslmode=verify-full",
        "LAMINAR_BROKER_URL": "rediss://:secret@queue.example.org:6380/0",
    }
    assert own.items() <= services(**own)[service]["environment"].items()
    here = services(POSTGRES_PASSWORD="one", VALKEY_PASSWORD="two")[service]["environment"]
    assert here["LAMINAR_DATABASE_URL"] == "postgresql://laminar:one@postgres:5432/laminar"
    assert here["LAMINAR_BROKER_URL"] == "redis://:two@valkey:6379/0" and here["LAMINAR_DATABASE_DIRECT_URL"] == ""


@pytest.mark.parametrize("name", ["postgres", "valkey", "ray"])
def test_external_service_is_neither_started_nor_awaited(name: str) -> None:
    left_out = compose(ROOT / "infra" / "own" / f"{name}.yml")["services"]
    assert all(service == {"profiles": ["not-here"]} for service in left_out.values())
    assert "not-here" not in (ROOT / ".env.example").read_text()
    both = services() | compose(ROOT / "infra" / "backup" / "compose.yml")["services"]
    waiting = {
        (waiter, awaited): how
        for waiter, service in both.items()
        if waiter not in left_out
        for awaited, how in service.get("depends_on", {}).items()
        if awaited in left_out
    }
    assert bool(waiting) == (name != "ray")
    assert all(how["required"] is False and how["condition"] == "service_healthy" for how in waiting.values())


@pytest.mark.parametrize("service", ["migrate", "web", "worker", "beat"])
def test_a_ray_of_ones_own_takes_the_place_of_the_one_here(service: str) -> None:
    own = {"LAMINAR_RAY_URL": "https://ray.example.org"}
    assert own.items() <= services(**own)[service]["environment"].items()
    assert services()[service]["environment"]["LAMINAR_RAY_URL"] == "http://ray-head:8265"


@pytest.mark.parametrize(("variable", "secret", "service"), FILES)
def test_operators_file_is_mounted_at_its_variables_path(variable: str, secret: str, service: str) -> None:
    whole = compose(**{variable: "/root/secrets/of-ours"})
    assert whole["secrets"][secret]["file"] == "/root/secrets/of-ours"
    assert secret in whole["services"][service]["secrets"]
    assert whole["services"][service]["environment"][variable] == f"/run/secrets/{secret}"


@pytest.mark.parametrize(("variable", "secret", "service"), FILES)
def test_optional_file_may_be_missing(variable: str, secret: str, service: str) -> None:
    assert services()[service]["environment"][variable] == ""
    assert compose()["secrets"][secret]["file"] == "/dev/null"


def test_no_ray_node_sees_a_secret_of_the_control_plane() -> None:
    for name in ("ray-head", "ray-worker"):
        assert {each if isinstance(each, str) else each["source"] for each in services()[name]["secrets"]} == {
            "ray_token",
            "ca_bundle",
            "web_identity",
            "aws_credentials",
        }


@pytest.mark.parametrize("service", ["web", "worker", "beat", "migrate"])
def test_audit_anchors_are_kept_apart_from_their_key(service: str) -> None:
    one, other = services()[service], services(LAMINAR_AUDIT_DIR="/mnt/other/anchors")[service]
    assert one["environment"]["LAMINAR_AUDIT_DIR"] == other["environment"]["LAMINAR_AUDIT_DIR"] == "/audit"
    assert "audit:/audit" in one["volumes"] and "/mnt/other/anchors:/audit" in other["volumes"]
    assert "/audit" in (ROOT / "infra/images/web/Dockerfile").read_text(), "a new volume has the owner of this folder"


@pytest.mark.parametrize("service", ["web", "worker", "beat"])
def test_further_rays_tokens_are_read_from_their_folder(service: str) -> None:
    one, other = services()[service], services(LAMINAR_RAY_TOKENS_DIR="/root/rays")[service]
    assert one["environment"]["LAMINAR_RAY_TOKENS_DIR"] == ""
    assert f"/root/rays:{other['environment']['LAMINAR_RAY_TOKENS_DIR']}:ro" in other["volumes"]
    assert {each.partition(":")[0] for each in one["volumes"]} <= set(compose()["volumes"])


@pytest.mark.parametrize("service", ["ray-head", "ray-worker"])
def test_node_cache_is_in_its_folder_or_by_default_the_store(service: str) -> None:
    one, other = services()[service], services(LAMINAR_NODE_CACHE_DIR="/mnt/fast")[service]
    assert one["environment"]["LAMINAR_NODE_CACHE_DIR"] == ""
    assert f"/mnt/fast:{other['environment']['LAMINAR_NODE_CACHE_DIR']}" in other["volumes"]


@pytest.mark.parametrize("service", ["ray-head", "ray-worker"])
def test_a_ray_node_gets_what_one_of_make_up_gets(service: str) -> None:
    assert set(PASSED_ON) <= set(services()[service]["environment"])


def test_images_are_tagged_by_version() -> None:
    images = {
        name: service["image"] for name, service in services(LAMINAR_VERSION="7.8.9").items() if "build" in service
    }
    assert set(images.values()) == {"laminar-web:7.8.9", "laminar-engine:7.8.9"}
    ours = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"\nLAMINAR_VERSION={ours}\n" in (ROOT / ".env.example").read_text()


@pytest.mark.parametrize("build", ["cuda", "cpu"])
def test_engine_image_is_built_from_the_requested_wheels(build: str) -> None:
    page = "https://wheels.example.org/cpu/"
    arguments = services(LAMINAR_TORCH=build, LAMINAR_TORCH_WHEELS=page)["ray-worker"]["build"]["args"]
    assert arguments == {"TORCH": build, "PIP_FIND_LINKS": page}
    taken = set(re.findall(r"^ARG (\w+)", (ROOT / "infra/images/engine/Dockerfile").read_text(), re.MULTILINE))
    assert taken == set(arguments), "every argument of the image can be set in .env"
