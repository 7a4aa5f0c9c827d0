"""A node with a really full disk for a while: the run's own files, /tmp or shared memory."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine.live.run.jobs.on_a_small_disk import ENDS_WITHIN_S, SPEC, STEPS

pytestmark = [pytest.mark.ray, pytest.mark.soak]
PROJECT = Path(__file__).parents[5]
NAMESPACE = ["unshare", "--mount"] if os.getuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]


@pytest.mark.parametrize("small", ["its own facts, journal and checkpoints", "/tmp", "/dev/shm"])
def test_run_resumes_when_disk_has_room_and_trains_each_once(small: str) -> None:
    tried = subprocess.run([*NAMESPACE, "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True)
    if tried.returncode != 0:
        pytest.skip("this machine does not allow mounts, even in a name space")
    if any(Path(small) in Path(used).resolve().parents for used in (PROJECT, sys.prefix)):
        pytest.skip(f"this checkout lies below {small}, which would hide it")
    out = Path("/var/tmp", f"laminar-small-disk-{os.getpid()}")  # not below /tmp, which one case makes small
    out.mkdir()
    try:
        folder = small if small.startswith("/") else str(out / "small")
        written = out / "run" if small.startswith("/") else out / "small" / "run"
        command = [sys.executable, "-m", "tests.engine.live.run.jobs.on_a_small_disk", folder, str(written)]
        done = subprocess.run(
            [*NAMESPACE, *command], cwd=PROJECT, capture_output=True, text=True, timeout=ENDS_WITHIN_S + 60
        )
        assert done.returncode == 0, done.stdout + done.stderr[-4_000:]
        summary = json.loads(done.stdout.splitlines()[-1])
        num_samples = STEPS * SPEC["training"]["prompts_per_step"] * SPEC["algorithm"]["group_size"]  # type: ignore[index]
        assert summary["steps"] == STEPS
        assert summary["ledger"]["trained"] == num_samples and summary["ledger"]["open"] == 0
    finally:
        subprocess.run(["rm", "-rf", str(out)], check=True)
