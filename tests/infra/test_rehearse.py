"""The pure pieces of `make rehearse`, and, among the long tests, its short form."""

import ast
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.local.home import PROJECT
from infra.rehearse import __main__ as command
from infra.rehearse.container_engine import not_ready, without_names_of
from infra.rehearse.enclosure import left_behind
from infra.rehearse.faults import STRUCK
from infra.rehearse.images import IMAGES, STAND_INS
from infra.rehearse.jobs import EXAMPLE, code_of
from infra.rehearse.restore import STOPPED
from infra.rehearse.rotate import CONTROL_PLANE
from infra.rehearse.site import SITE, STORE, filled_in
from infra.rehearse.wheels import LOCKS, SERVERS, entries
from infra.rehearse.work import Work
from infra.setup.terminal import Refusal
from tests.infra.containers.compose_file import compose, services


def container(status: str, *, health: str | None = None, exit_code: int = 0) -> Mapping[str, Any]:
    told = {"Health": {"Status": health}} if health else {}
    return {"State": {"Status": status, "ExitCode": exit_code, **told}}


def test_value_is_set_in_its_line_and_unknown_name_refused() -> None:
    example = "# A and B\nA=\nAB=1\n"
    assert filled_in(example, {"A": r"s3://b/\1"}) == "# A and B\nA=s3://b/\\1\nAB=1\n"
    with pytest.raises(ValueError, match="one line GONE="):
        filled_in(example, {"GONE": "x"})


def test_env_file_outranks_the_shell() -> None:
    example = (PROJECT / ".env.example").read_text()
    shell = {"PATH": os.environ["PATH"], "AWS_CA_BUNDLE": "/of/the/shell", "LAMINAR_PUBLIC_URL": "", "EDITOR": "vi"}
    left = subprocess.run(
        [*without_names_of(example), "env"], env=shell, capture_output=True, text=True, check=True
    ).stdout
    assert sorted(line.partition("=")[0] for line in left.splitlines()) == ["EDITOR", "PATH"]


def test_ready_is_healthy_or_done_with_what_was_to_be_done_once() -> None:
    rows = {"web": container("running", health="healthy"), "migrate": container("exited"), "wal": container("running")}
    assert not_ready(rows, {"web", "migrate", "wal"}) == ""
    rows = {"web": container("running", health="starting"), "migrate": container("exited", exit_code=1)}
    assert not_ready(rows, {"web", "migrate", "beat"}) == "beat not there, migrate exited, web starting"


def test_stand_ins_servers_are_the_locks_with_hashes() -> None:
    found = entries((LOCKS / "local.txt").read_text(), SERVERS)
    assert [line.split("==")[0] for line in found.splitlines() if not line.startswith(" ")] == list(SERVERS)
    assert found.count("--hash=sha256:") >= len(SERVERS)
    with pytest.raises(ValueError, match="no such-thing"):
        entries(found, ("such-thing",))


def test_every_registry_image_has_a_stand_in() -> None:
    files = [PROJECT / "docker-compose.yml", PROJECT / "infra" / "backup" / "Dockerfile"]
    files += (PROJECT / "infra" / "images").glob("*/Dockerfile")
    text = "\n".join(file.read_text() for file in files)
    named = [line.split()[1] for line in text.splitlines() if line.lstrip().startswith(("image: ", "FROM "))]
    assert {name for name in named if not name.startswith(("laminar-", "${WEB_IMAGE}"))} <= set(IMAGES.values())
    assert all((STAND_INS / f"{name}.Dockerfile").is_file() for name in IMAGES)


def test_every_lasting_service_is_killed_and_ray_stays_up() -> None:
    on_top = yaml.safe_load((PROJECT / "infra" / "backup" / "compose.yml").read_text())["services"]
    once = {"migrate", "folders", "backup", "restore"}
    lasting = (set(services()) | set(on_top)) - once
    assert set(STRUCK) == lasting
    assert set(STOPPED) < lasting - {"ray-head", "ray-worker"}


def test_what_a_rotation_replaces_is_whatever_has_that_secret() -> None:
    """Renders Compose's services with two values of the secret: a service that differs has that secret."""
    for variable, others in {
        "LAMINAR_SECRET_KEY": set(),
        "POSTGRES_PASSWORD": {"wal"},
        "VALKEY_PASSWORD": {"valkey"},
    }.items():
        on_top = PROJECT / "infra" / "backup" / "compose.yml"
        both = [services(**{variable: told}) | compose(on_top, **{variable: told})["services"] for told in ("a", "b")]
        lasting = set(both[0]) - {"migrate", "backup", "restore"}
        changed = {name for name in lasting if both[0][name] != both[1][name]}
        assert set(CONTROL_PLANE) | others <= changed
        # `wal` has the others for the sake of `backup`; Postgres takes a password at its first start alone.
        assert changed - set(CONTROL_PLANE) - others <= {"wal", "postgres"}
    assert {name for name, each in services().items() if "ray_token" in each.get("secrets", [])} - {"migrate"} == {
        *CONTROL_PLANE, "ray-head", "ray-worker"
    }  # fmt: skip


def test_the_job_in_the_sandbox_is_the_documented_example() -> None:
    module = ast.parse(code_of(EXAMPLE.read_text()))
    assert [part.name for part in module.body if isinstance(part, ast.FunctionDef)] == ["prompt", "respond"]


def test_foreign_folder_is_neither_used_nor_removed(tmp_path: Path) -> None:
    (tmp_path / "letters").write_text("to be kept")
    with pytest.raises(Refusal, match="new or empty folder"):
        Work(tmp_path).take_folder()
    assert not Work(tmp_path).is_ours
    Work(tmp_path / "new").take_folder()
    Work(tmp_path / "new").take_folder()
    assert Work(tmp_path / "new").is_ours


def test_projects_copy_is_renewed_under_mounted_folders(tmp_path: Path) -> None:
    work = Work(folder=tmp_path)
    work.copy_project()
    work.environment_file.write_text("KEPT=1")
    mounted = work.project / "infra/proxy"
    (mounted / "gone.sh").write_text("")
    before = mounted.stat().st_ino
    work.copy_project()
    assert mounted.stat().st_ino == before and (mounted / "health.sh").is_file()
    assert not (mounted / "gone.sh").exists() and work.environment_file.read_text() == "KEPT=1"


def test_running_process_in_the_folder_counts_as_left_behind(tmp_path: Path) -> None:
    work = Work(tmp_path / "folder")
    work.folder.mkdir()
    with subprocess.Popen(["sleep", "60"], cwd=work.folder) as process:
        assert f"process {process.pid}" in left_behind(work)
        process.kill()
    assert left_behind(work) == [f"folder {work.folder}"]


def test_one_that_is_ended_by_a_signal_removes_what_it_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(work: Work) -> None:
        work.take_folder()
        os.kill(os.getpid(), signal.SIGTERM)
        raise AssertionError("went on")

    monkeypatch.setattr(command, "check_machine", lambda work: None)
    monkeypatch.setattr(command, "fetch", fetch)
    monkeypatch.setattr(sys, "argv", ["rehearse", "--work", str(tmp_path / "work")])
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert command.main() == 1 and not (tmp_path / "work").exists()
    finally:
        signal.signal(signal.SIGTERM, before)


def test_what_a_rehearsal_sets_are_lines_of_the_example() -> None:
    example = (PROJECT / ".env.example").read_text()
    ours = {"LAMINAR_BACKUP_DIR": "/b", "LAMINAR_TLS_CERTIFICATE_FILE": "/c", "LAMINAR_TLS_KEY_FILE": "/k"}
    told = filled_in(example, SITE | STORE | ours)
    assert {f"{name}={value}" for name, value in (SITE | STORE | ours).items()} <= set(told.splitlines())


@pytest.mark.soak
@pytest.mark.skipif(os.geteuid() != 0 or not Path("/dev/net/tun").exists(), reason="wants root and /dev/net/tun")
def test_the_containers_come_up_run_jobs_and_leave_nothing(tmp_path: Path) -> None:
    short = [word for part in ("faults", "upgrade", "rotate", "restore") for word in ("--without", part)]
    command = [sys.executable, "-m", "infra.rehearse", "--work", str(tmp_path / "work"), *short]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not (tmp_path / "work").exists()
