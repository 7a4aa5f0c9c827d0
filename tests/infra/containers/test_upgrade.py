"""The upgrade migrates while the old version serves, stops at what fails, and leaves a way back."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.infra.containers.compose_file import ROOT

# Replaces `docker`, which test machines do not have, and records its arguments.
# The rehearsal runs the same file against a real one.
DOCKER = """#!/bin/sh
echo "$*" >> "$TOLD"
case "$*" in
    "compose images web") echo "laminar-web-1  laminar-web  $RUNS  0123456789ab  635MB" ;;
    "image inspect "*) [ "$IS_BUILT" = 1 ] ;;
    *"$FAILS"*) exit 1 ;;
esac
"""
Upgrade = Callable[..., tuple[subprocess.CompletedProcess[str], list[str]]]


@pytest.fixture
def upgrade(tmp_path: Path) -> Upgrade:
    docker, told = tmp_path / "docker", tmp_path / "told"
    docker.write_text(DOCKER)
    docker.chmod(0o755)

    def run(
        version: str, *, runs: str = "0.1.0", is_built: bool = False, fails: str = "nothing of it"
    ) -> tuple[subprocess.CompletedProcess[str], list[str]]:
        (tmp_path / ".env").write_text(f"LAMINAR_VERSION={version}\n")
        given = {"TOLD": str(told), "RUNS": runs, "IS_BUILT": str(int(is_built)), "FAILS": fails}
        environment = os.environ | given | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
        done = subprocess.run(["sh", str(ROOT / "infra/upgrade.sh")], cwd=tmp_path, env=environment,
                              capture_output=True, text=True)  # fmt: skip
        asked = told.read_text().splitlines() if told.exists() else []
        return done, [line for line in asked if "images web" not in line and "inspect" not in line]

    return run


def test_upgrade_migrates_before_it_replaces_services(upgrade: Upgrade) -> None:
    done, told = upgrade("0.2.0")
    replaced = [f"compose up --detach --no-deps --wait {name}" for name in ("web", "worker", "beat")]
    assert (done.returncode, told) == (0, ["compose build", "compose run --rm migrate", *replaced]), done.stderr


@pytest.mark.parametrize(("fails", "done_before"), [("compose build", 1), ("run --rm migrate", 2)])
def test_what_fails_leaves_the_old_version_running(upgrade: Upgrade, fails: str, done_before: int) -> None:
    done, told = upgrade("0.2.0", fails=fails)
    assert done.returncode != 0 and len(told) == done_before
    assert not [line for line in told if " up " in line]


def test_a_version_that_runs_is_not_built_over(upgrade: Upgrade) -> None:
    done, told = upgrade("0.1.0")
    assert done.returncode != 0 and not told
    assert "laminar-web:0.1.0 runs already" in done.stderr and ".env" in done.stderr


def test_the_way_back_builds_nothing(upgrade: Upgrade) -> None:
    done, told = upgrade("0.1.0", runs="0.2.0", is_built=True)
    assert done.returncode == 0 and "compose build" not in told
