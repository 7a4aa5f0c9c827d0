"""The containers run what `make up` runs, with its words; they end, start again and log as a server's should."""

import re
from pathlib import Path

import pytest
import yaml

from backend import settings
from infra.local.home import Home
from infra.local.ports import PORT_NAMES
from infra.local.services.site import Service, Site
from infra.local.services.valkey import binary
from tests.infra.containers.compose_file import ROOT, compose, seconds, services

# Options that depend on the place: the listen address, the number of processes, the log level, beat's schedule file.
OF_THE_PLACE = {"--host", "--port", "--log-level", "--loglevel", "--concurrency", "--schedule"}
OF_THE_PLACE |= {"--timeout-worker-healthcheck"}  # of several


@pytest.fixture
def local(tmp_path: Path) -> dict[str, Service]:
    home = Home(tmp_path / ".laminar")
    home.prepare()
    site = Site(home=home, ports=dict.fromkeys(PORT_NAMES, 1))
    return {service.name: service for service in site.services()}


def words_of(command: list[str]) -> list[str]:
    """From the program's name on, `--name=value` in two, less what is of the place."""
    words = [word for each in command[command.index("-m") + 1 :] for word in re.split(r"(?<=\w)=", each, maxsplit=1)]
    kept, skips = [], False
    for word in words:
        if not skips and word not in OF_THE_PLACE:
            kept.append(word)
        skips = word in OF_THE_PLACE
    return kept


def web_command() -> list[str]:
    (words,) = re.findall(r"^CMD (\[.*\])$", (ROOT / "infra/images/web/Dockerfile").read_text(), re.MULTILINE)
    return re.findall(r'"([^"]*)"', words)


def test_web_worker_and_beat_run_with_the_words_of_make_up(local: dict[str, Service]) -> None:
    ours = {"web": web_command()} | {name: services()[name]["command"] for name in ("worker", "beat")}
    for name, command in ours.items():
        assert sorted(words_of(command)) == sorted(words_of(local[name].command())), name


def test_the_broker_has_the_settings_of_make_up(local: dict[str, Service]) -> None:
    local["valkey"].prepare()
    theirs = Path(local["valkey"].command()[1]).read_text().splitlines()
    ours = services()["valkey"]["command"][-1].splitlines()
    place = ("bind", "port", "dir", "requirepass")
    assert [line for line in theirs if not line.startswith(place)] == [
        line for line in ours if not line.startswith(("exec", "END", *place))
    ]
    assert binary()


def test_broker_is_not_root_and_hides_its_password() -> None:
    valkey = services(VALKEY_PASSWORD="hunter2")["valkey"]
    assert valkey["user"] == "valkey"
    script = valkey["command"][-1]
    assert script.startswith("exec valkey-server - <<") and "$VALKEY_PASSWORD" not in script.splitlines()[0]
    assert "hunter2" not in str(valkey["command"])


def test_a_worker_that_is_stopped_ends_softly_as_that_of_make_up(local: dict[str, Service]) -> None:
    theirs, ours = local["worker"].environment(), services()["worker"]["environment"]
    assert ours["REMAP_SIGTERM"] == theirs["REMAP_SIGTERM"] == "SIGQUIT"


def test_whoever_stops_has_the_time_that_stopping_takes() -> None:
    (graceful,) = re.findall(r"--timeout-graceful-shutdown (\d+)", " ".join(web_command()))
    grace = {name: seconds(service.get("stop_grace_period", "10s")) for name, service in services().items()}
    assert grace["web"] > float(graceful)
    assert grace["worker"] > settings.CELERY_WORKER_SOFT_SHUTDOWN_TIMEOUT
    assert grace["postgres"] >= 60, "a checkpoint of much that was written"


def test_web_processes_share_a_port_and_their_metrics() -> None:
    environment = services(LAMINAR_WEB_PROCESSES="3")["web"]["environment"]
    assert environment["WEB_CONCURRENCY"] == "3", "uvicorn's own name for it"
    assert services()["web"]["environment"]["WEB_CONCURRENCY"] == "2"
    assert environment["LAMINAR_METRICS_DIR"].startswith("/dev/shm/"), "a start finds no counts of the last"


def test_slow_web_process_is_not_replaced_repeatedly() -> None:
    """uvicorn's own patience, 5 s, is less than a process takes to begin on a machine with much else to do."""
    words = web_command()
    assert float(words[words.index("--timeout-worker-healthcheck") + 1]) >= 30


def test_only_workers_get_gpus_by_an_extra_file() -> None:
    on_top = yaml.safe_load((ROOT / "infra" / "gpus.yml").read_text())["services"]
    assert on_top.keys() == {"ray-worker"} <= services().keys()
    (devices,) = on_top["ray-worker"]["deploy"]["resources"]["reservations"]["devices"]
    assert devices == {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}


def test_every_container_keeps_a_bounded_log() -> None:
    for name, service in services().items():
        logging = service["logging"]
        assert logging["driver"] == "json-file", name
        assert logging["options"]["max-size"] and int(logging["options"]["max-file"]) > 1, name


def test_object_store_leaves_shared_memory_for_weights() -> None:
    for name in ("ray-head", "ray-worker"):
        service = services()[name]
        (given,) = [int(word.partition("=")[2]) for word in service["command"] if word.startswith("--object-store-mem")]
        shared = int(re.fullmatch(r"(\d+)gb", service["shm_size"])[1]) * 2**30  # type: ignore[index]
        assert given <= shared / 2, name
    larger = services(LAMINAR_RAY_OBJECT_STORE="5000000000")["ray-worker"]["command"]
    assert "--object-store-memory=5000000000" in larger


def test_database_is_healthy_once_it_answers_over_tcp() -> None:
    """The image's temporary server, of a cluster that is being made, has a socket and no address."""
    assert "--host=127.0.0.1" in services()["postgres"]["healthcheck"]["test"]


def test_control_plane_setting_replaces_no_ray_node() -> None:
    """Compose replaces whatever depends on what it replaces, and it replaces whatever has other words than before."""
    before, after = services(), services(LAMINAR_RATE_SCALE="2", LAMINAR_EMAIL_URL="smtp://mail", AWS_REGION="")
    seen, asked = set(), ["ray-head", "ray-worker"]
    while asked:
        name = asked.pop()
        seen.add(name)
        asked += set(before[name].get("depends_on", [])) - seen
        assert before[name] == after[name], name
    assert before["web"] != after["web"] and "migrate" not in seen


def test_ray_nodes_are_no_trusted_proxies() -> None:
    whole = compose(LAMINAR_FRONT_NETWORK="10.9.8.0/28")
    (front,) = whole["networks"]["front"]["ipam"]["config"]
    assert front["subnet"] == whole["services"]["web"]["environment"]["LAMINAR_TRUSTED_PROXIES"] == "10.9.8.0/28"
    assert {name for name, each in whole["services"].items() if "front" in each.get("networks", [])} == {"web", "proxy"}
