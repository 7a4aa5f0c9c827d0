"""The disk of the database, of the store, of Valkey and of the logs fills up, each alone, while a job trains."""

import subprocess
import sys

import pytest

from infra.local.home import PROJECT
from tests.infra.local.test_full_disk import NAMESPACE, may_mount

pytestmark = pytest.mark.e2e


@pytest.mark.soak
def test_each_full_disk_alone_costs_no_sample(tmp_path_factory: pytest.TempPathFactory) -> None:
    if not may_mount():
        pytest.skip("this machine forbids mounts, even in a namespace")
    home = tmp_path_factory.mktemp("disks") / ".laminar"
    command = [*NAMESPACE, sys.executable, "-m", "tests.e2e.on_full_disks", str(home)]
    done = subprocess.run(command, cwd=PROJECT, stdout=subprocess.PIPE, text=True, check=False)
    print(done.stdout)
    assert done.returncode == 0 and done.stdout.endswith("ok\n")
