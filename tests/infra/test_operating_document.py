"""infra/OPERATING.md names nothing that is not there: no command, variable, file, address or metric of another time."""

import importlib.util
import re
import subprocess
from pathlib import Path

import pytest
from django.core.management import get_commands
from django.urls import Resolver404, resolve

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = (ROOT / "infra/OPERATING.md").read_text()
BEGINNINGS = {
    "/ws/live": "backend/asgi.py",
    "/internal/": "backend/urls.py",
}  # of these only the beginning is named


def named(pattern: str) -> set[str]:
    found = set(re.findall(pattern, DOCUMENT))
    assert found, f"{pattern} finds nothing any more"
    return found


@pytest.fixture(scope="module")
def code() -> str:
    """All that somebody may set a variable of, without documents and tests."""
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    kept = (name for name in names if name and not name.startswith(("tests/", "frontend/")) and name[-3:] != ".md")
    return "\n".join((ROOT / name).read_text(errors="replace") for name in kept if (ROOT / name).is_file())


def test_every_variable_is_read_or_handed_on_somewhere(code: str) -> None:
    missing = {name for name in named(r"\b(?:LAMINAR|POSTGRES|VALKEY|COMPOSE)_[A-Z_]*[A-Z]\b") if name not in code}
    assert missing == set()


def test_what_containers_are_given_is_told_of() -> None:
    given = set(re.findall(r"^([A-Z_]+)=", (ROOT / ".env.example").read_text(), re.MULTILINE))
    untold = {"AWS_REGION": "the same by its other name", "LAMINAR_FRONT_NETWORK": "its own line describes it"}
    assert {name for name in given if name not in DOCUMENT} == set(untold)


def test_every_command_is_there() -> None:
    assert named(r"manage\.py (\w+)") <= set(get_commands())
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert named(r"[`|] *make ([a-z-]+)") <= targets
    modules = named(r"python -m ([\w.]+)")
    assert {name for name in modules if not name.startswith("ray.") and not importlib.util.find_spec(name)} == set()


def test_every_flag_of_a_command_is_one_that_it_takes(code: str) -> None:
    flags = named(r"`(--[a-z-]+)[ `]") | named(r"\| `(--[a-z-]+)")
    of_others = {"--security-opt", "--head", "--dashboard-host", "--address", "--num-gpus", "--replace"}
    assert {flag for flag in flags - of_others if f'"{flag}"' not in code} == set()


def test_every_file_is_there() -> None:
    files = named(r"`((?:infra|backend|engine|tests|frontend)/[\w./-]*)`") | named(r"\]\(([\w./]+\.md)")
    assert {name for name in files if not (ROOT / name).exists() and not (ROOT / "infra" / name).exists()} == set()


def test_every_place_in_it_that_it_leads_to_is_there() -> None:
    titles = re.findall(r"^#+ (.*)$", DOCUMENT, re.MULTILINE)
    places = {re.sub(r"[^\w\s-]", "", title.lower()).replace(" ", "-") for title in titles}
    assert named(r"\]\(#([\w-]+)\)") <= places


@pytest.mark.long
def test_every_address_of_the_site_answers_to_something() -> None:
    lost = set()
    for address in named(r"`(/(?:[a-z0-9]+/?)+)`") - set(BEGINNINGS) - {"/proc/sys", "/v1/traces"}:
        try:
            resolve(address)
        except Resolver404:
            lost.add(address)
    assert lost == set()
    for address, where in BEGINNINGS.items():
        assert address.strip("/") in (ROOT / where).read_text(), address


def test_no_documented_command_makes_compose_replace_ray_nodes() -> None:
    """With `--no-deps`, Compose 2.26 hashes a service without its dependencies: the next `up` replaces it."""
    ups = named(r"`(?:docker compose|…) (up -d[^`]*)`")
    assert any("ray-head" in words for words in ups) and any("--no-deps" in words for words in ups)
    assert [words for words in ups if "ray-" in words and "--no-deps" in words] == []
