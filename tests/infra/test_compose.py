"""docker-compose.yml fits the code: every variable, command, module and file that it names exists."""

import dataclasses
import importlib.util
import itertools
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from backend.environment import OPTIONAL, Environment, read_environment
from engine.live.checkpoints.store import FETCHED
from engine.live.process.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docker-compose.yml").read_text()
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load(TEXT)["services"]
DOCUMENTED = set(re.findall(r"^([A-Z_]+)=", (ROOT / ".env.example").read_text(), re.MULTILINE))
CONTROL_PLANE = ["migrate", "web", "worker", "beat"]
IMAGES = sorted((ROOT / "infra" / "images").glob("*/Dockerfile"))


def code_of(dockerfile: Path) -> str:
    return "\n".join(line for line in dockerfile.read_text().splitlines() if not line.lstrip().startswith("#"))


def test_the_services_are_those_of_one_machine_and_a_ray_worker() -> None:
    of_one_machine = {"postgres", "valkey", "folders", "migrate", "web", "worker", "beat", "ray-head", "ray-worker"}
    assert {name for name, service in SERVICES.items() if "profiles" not in service} == of_one_machine
    assert {name for name, service in SERVICES.items() if "profiles" in service} == {"proxy"}


def test_variables_and_their_documentation_match() -> None:
    both = TEXT + (ROOT / "infra" / "backup" / "compose.yml").read_text()
    interpolated = set(re.findall(r"(?<!\$)\$\{([A-Z_]+)", both))
    from_secrets = {
        secret["environment"] for secret in yaml.safe_load(TEXT)["secrets"].values() if "file" not in secret
    }
    by_compose = {"COMPOSE_FILE", "COMPOSE_PROFILES"}
    assert interpolated | from_secrets | by_compose == DOCUMENTED


def test_every_documented_variable_says_in_one_line_what_it_is() -> None:
    lines = (ROOT / ".env.example").read_text().splitlines()
    assert not [line for above, line in itertools.pairwise(lines) if "=" in line[:25] and above[:2] != "# "]


@pytest.mark.parametrize("service", CONTROL_PLANE)
def test_the_control_plane_gets_its_whole_environment(service: str) -> None:
    contract = {f"LAMINAR_{field.name.upper()}" for field in dataclasses.fields(Environment)}
    of_others = {"WEB_CONCURRENCY", "REMAP_SIGTERM"}  # uvicorn's and Celery's own
    given = {name for name in SERVICES[service]["environment"] if not name.startswith("AWS_")}
    assert given - of_others == contract


@pytest.mark.parametrize("service", ["ray-head", "ray-worker"])
def test_ray_asks_for_its_token_and_shares_the_store(service: str) -> None:
    environment = SERVICES[service]["environment"]
    assert environment["RAY_AUTH_MODE"] == "token"
    assert environment["RAY_AUTH_TOKEN_PATH"] == SERVICES["web"]["environment"]["LAMINAR_RAY_TOKEN_FILE"]
    assert environment["LAMINAR_STORE_DIR"] == SERVICES["web"]["environment"]["LAMINAR_STORE_DIR"]
    assert "ray_token" in SERVICES[service]["secrets"]


@pytest.mark.parametrize("service", ["ray-head", "ray-worker"])
def test_ray_node_writes_only_job_folders_of_the_store(service: str) -> None:
    mounts = {each["target"]: each for each in SERVICES[service]["volumes"] if isinstance(each, dict)}
    store = Path(SERVICES[service]["environment"]["LAMINAR_STORE_DIR"])
    settings = Settings.from_environment({"LAMINAR_STORE_DIR": str(store)})
    needed = {str(store / "jobs"), str(store / FETCHED), str(settings.models), str(settings.data)}
    assert set(mounts) == needed
    assert {each["source"] for each in mounts.values()} == {"store"}
    assert all(target == str(store / each["volume"]["subpath"]) for target, each in mounts.items())
    read_only = {target for target, each in mounts.items() if each.get("read_only")}
    assert read_only == {str(settings.models), str(settings.data)}
    assert settings.node_cache.is_relative_to(store / FETCHED), "what a node fetches, it keeps where it may write"
    made = {word for word in SERVICES["folders"]["command"] if word.startswith("/store/")}
    assert made == needed and SERVICES[service]["depends_on"]["folders"], "a folder must be there to be mounted"
    (in_image,) = re.findall(r"install -d (?:\\\n|.)*", code_of(ROOT / "infra" / "images" / "web" / "Dockerfile"))
    assert needed <= set(in_image.split()), "and is looked for before anything runs: a new volume has it from the image"


@pytest.mark.parametrize("service", CONTROL_PLANE)
def test_ray_nodes_see_no_static_files_and_no_audit_key(service: str) -> None:
    told = {name: value for name, value in SERVICES[service]["environment"].items() if "${" not in str(value)}
    needed = {f"LAMINAR_{field.name.upper()}" for field in dataclasses.fields(Environment)} - OPTIONAL
    ours = read_environment(dict.fromkeys(needed, "x") | told)
    sources = {target: source for source, _, target in (each.rpartition(":") for each in SERVICES[service]["volumes"])}
    nodes = [each for name in ("ray-head", "ray-worker") for each in SERVICES[name]["volumes"]]
    of_nodes = {each["source"] if isinstance(each, dict) else each.rpartition(":")[0] for each in nodes}
    assert not {sources[str(ours.site_dir)], sources[str(ours.audit_dir)]} & of_nodes
    assert ours.audit_key_file.parent == ours.site_dir / "audit"


@pytest.mark.parametrize("service", sorted(set(SERVICES) - {"migrate", "folders"}))
def test_every_lasting_service_has_a_health_check(service: str) -> None:
    assert SERVICES[service]["healthcheck"]["test"]


def test_only_the_site_is_published_on_loopback_by_default() -> None:
    assert [name for name, service in SERVICES.items() if "ports" in service] == ["web", "proxy"]
    assert SERVICES["proxy"]["profiles"] == ["tls"], "only with the profile tls"
    (published,) = SERVICES["web"]["ports"]
    unset = re.sub(r"\$\{[A-Z_]+:-([^}]*)\}", r"\1", published)
    assert unset == "127.0.0.1:8000:8000", "it speaks plain http: a proxy on this machine is what reaches it"
    examples = re.findall(r"^LAMINAR_WEB_ADDRESS=(.*)$", (ROOT / ".env.example").read_text(), re.MULTILINE)
    assert "${LAMINAR_WEB_ADDRESS:-" in published and examples == ["127.0.0.1"]


@pytest.mark.parametrize("service", CONTROL_PLANE)
def test_every_module_that_a_command_names_exists(service: str) -> None:
    web_image = code_of(ROOT / "infra" / "images" / "web" / "Dockerfile")
    words = " ".join(SERVICES[service].get("command", re.findall(r"CMD (\[.*\])", web_image)))
    words = re.sub(r'[\[\]",]', " ", words)
    modules = re.findall(r"-m (\S+)|-A (\S+)|(backend\.\w+):", words)
    files = re.findall(r"python (\w+\.py)", words)
    assert modules or files
    for name in [name for names in modules for name in names if name]:
        assert importlib.util.find_spec(name), name
    assert all((ROOT / file).is_file() for file in files)


def test_every_services_command_and_dependencies_exist() -> None:
    for service in SERVICES.values():
        assert set(service.get("depends_on", {})) <= set(SERVICES)
        if "build" in service:
            assert (ROOT / service["build"]["dockerfile"]).is_file()


@pytest.mark.parametrize("dockerfile", IMAGES, ids=lambda path: path.parent.name)
def test_everything_that_an_image_copies_exists(dockerfile: Path) -> None:
    copied = [source for line in re.findall(r"^COPY (.*)$", code_of(dockerfile), re.M) for source in line.split()[:-1]]
    assert copied and not [source for source in copied if not (ROOT / source).exists()]


@pytest.mark.parametrize("dockerfile", IMAGES, ids=lambda path: path.parent.name)
def test_an_image_installs_by_hash_and_runs_as_an_ordinary_user(dockerfile: Path) -> None:
    code = code_of(dockerfile)
    installed = code + "".join(script.read_text() for script in dockerfile.parent.glob("*.sh"))
    assert "--no-deps --require-hashes" in installed and re.search(r"^USER laminar$", code, re.MULTILINE)


def test_the_engine_image_has_vllm_where_the_engine_looks_for_it() -> None:
    code = code_of(ROOT / "infra" / "images" / "engine" / "Dockerfile")
    default = re.fullmatch(
        r"\$\{LAMINAR_VLLM_PYTHON:-(.+)\}", SERVICES["ray-head"]["environment"]["LAMINAR_VLLM_PYTHON"]
    )
    assert default is not None
    python = default[1]
    assert f"ENV LAMINAR_VLLM_PYTHON={python}" in code and f"install.sh {python} " in code


def test_the_web_image_has_no_torch() -> None:
    code = code_of(ROOT / "infra" / "images" / "web" / "Dockerfile")
    assert not re.search(r"torch|cuda|engine\.txt|local\.txt|dev\.txt", code)
