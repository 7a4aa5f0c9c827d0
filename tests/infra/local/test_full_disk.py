"""A site whose disk is full, for real: a tmpfs of its own, in a namespace, filled to the last byte."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from infra.local.home import PROJECT

NAMESPACE = ["unshare", "--mount"] if os.getuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]


def may_mount() -> bool:
    tried = subprocess.run([*NAMESPACE, "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True)
    return tried.returncode == 0


# Postgres does not run as root, and in an ordinary user's namespace root has no other user to switch to.
SERVICES = ["valkey", "postgres"] if os.getuid() == 0 else ["valkey"]


@pytest.mark.soak
def test_service_survives_a_full_disk_and_recovers(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    if not may_mount():
        pytest.skip("this machine forbids mounts, even in a namespace")
    home: Path = tmp_path_factory.mktemp("disk") / ".laminar"
    command = [*NAMESPACE, sys.executable, "-m", "tests.infra.local.on_a_small_disk", str(home), *SERVICES]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0 and done.stdout.endswith("ok\n"), done.stdout + done.stderr
