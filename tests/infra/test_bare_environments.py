"""What an image's commands import, its locks bring."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.infra.bare_environment import IMAGES, OfTheLocks, pinned_in

ROOT = Path(__file__).resolve().parents[2]
LOCKS = ROOT / "infra" / "locks"


def locks_of(image: str) -> list[str]:
    """Of its own environment; vLLM's is made by a step of its own."""
    code = (ROOT / "infra" / "images" / image / "Dockerfile").read_text()
    if by_script := re.findall(r"install\.sh python (\w+)", code):  # with torch, in the build for CUDA
        return [f"infra/locks/{lock}.txt" for lock in ("torch", "cuda", *by_script)]
    (install,) = re.findall(r"^RUN python -m pip install.*?(?=\n\S|\Z)", code, re.MULTILINE | re.DOTALL)
    return re.findall(r"-r (\S+)", install)


def import_in(python: str, image: str, locks: list[str]) -> str:
    """What it complained of."""
    command = [python, "-m", "tests.infra.bare_environment", image, *locks]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "DJANGO_SETTINGS_MODULE": "backend.settings"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    return done.stderr[-2000:] if done.returncode else ""


def test_every_image_is_looked_at() -> None:
    assert set(IMAGES) == {path.parent.name for path in (ROOT / "infra" / "images").glob("*/Dockerfile")}


@pytest.mark.long
@pytest.mark.parametrize("image", IMAGES)
def test_image_commands_import_only_what_its_locks_install(image: str) -> None:
    assert import_in(sys.executable, image, locks_of(image)) == ""


def test_a_package_that_only_others_bring_is_not_there() -> None:
    pinned = pinned_in([str(LOCKS / "backend.txt")])
    assert OfTheLocks(pinned).find_spec("packaging") is not None
    assert OfTheLocks(pinned - {"packaging"}).find_spec("packaging") is None


@pytest.mark.soak
@pytest.mark.parametrize("image", IMAGES)
def test_bare_environment_of_an_images_locks_runs_commands(image: str, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    python = str(tmp_path / "venv" / "bin" / "python")
    locks = [word for lock in locks_of(image) for word in ("-r", str(ROOT / lock))]
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes", *locks], check=True)
    assert import_in(python, image, []) == ""
