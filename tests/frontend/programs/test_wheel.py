"""The site serves its own client: pip installs it, and it is built from these sources."""

import csv
import hashlib
import io
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from base64 import urlsafe_b64encode
from email import message_from_bytes
from pathlib import Path

import pytest
from django.test import Client

from backend.pages.programs import wheel
from tests.frontend.conftest import Server
from tests.frontend.seed import World

DECLARED = tomllib.loads((wheel.CLIENT / "pyproject.toml").read_text())


@pytest.fixture(scope="module")
def archive() -> zipfile.ZipFile:
    return zipfile.ZipFile(io.BytesIO(wheel.wheel()))


def test_the_same_sources_give_the_same_bytes(archive: zipfile.ZipFile) -> None:
    assert wheel.wheel.__wrapped__() == wheel.wheel()
    assert {entry.date_time for entry in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    assert {entry.compress_type for entry in archive.infolist()} == {zipfile.ZIP_STORED}


def test_wheel_has_declared_packages_and_no_work_files(archive: zipfile.ZipFile) -> None:
    files = [name for name in archive.namelist() if ".dist-info/" not in name]
    packages = {Path(name).parent.as_posix().replace("/", ".") for name in files}
    assert packages == set(DECLARED["tool"]["setuptools"]["packages"])
    assert {Path(name).suffix for name in files if not name.endswith("py.typed")} == {".py"}
    assert all(archive.read(name) == (wheel.CLIENT / name).read_bytes() for name in files)


def test_its_record_vouches_for_every_file(archive: zipfile.ZipFile) -> None:
    (record,) = [name for name in archive.namelist() if name.endswith("/RECORD")]
    rows = {name: (digest, size) for name, digest, size in csv.reader(io.TextIOWrapper(archive.open(record)))}
    assert rows.pop(record) == ("", "") and rows.keys() == set(archive.namelist()) - {record}
    for name, told in rows.items():
        content = archive.read(name)
        digest = urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
        assert told == (f"sha256={digest}", str(len(content))), name


def test_it_asks_for_what_the_project_declares(archive: zipfile.ZipFile) -> None:
    project = DECLARED["project"]
    (metadata,) = [name for name in archive.namelist() if name.endswith("/METADATA")]
    told = message_from_bytes(archive.read(metadata))
    extras = project["optional-dependencies"].items()
    optional = [f'{each}; extra == "{name}"' for name, all_of in extras for each in all_of]
    assert told.get_all("Requires-Dist") == project["dependencies"] + optional
    assert (told["Name"], told["Version"], told["Requires-Python"]) == (
        project["name"],
        project["version"],
        project["requires-python"],
    )


@pytest.mark.django_db
def test_keys_page_has_the_url_of_the_wheel(world: World, owner: Client) -> None:
    for page in ("/keys/", "/client/", "/docs/api"):
        (line,) = set(re.findall(r"pip install (http\S+\.whl)", owner.get(page).content.decode()))
        path = "/" + line.split("/", 3)[3]
        assert owner.get(path).content == wheel.wheel(), page
        assert "curl --cacert company.pem -O" in owner.get(page).content.decode()


@pytest.mark.long
def test_pip_installs_it_from_the_site(server: Server, tmp_path: Path, transactional_db: None) -> None:
    """By URL, and by name from the page; its dependencies are installed already."""
    page = f"{server.url}/client/"
    for wanted in ([f"{page}{wheel.wheel_name()}"], ["--no-index", "--find-links", page, "laminar-client"]):
        target = tmp_path / str(len(wanted))
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target)]
        subprocess.run([*pip, *wanted], check=True)
        done = subprocess.run(
            [sys.executable, "-m", "laminar_client", "--version"], capture_output=True, text=True, cwd=tmp_path,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(target)},
        )  # fmt: skip
        assert done.stdout == f"laminar {DECLARED['project']['version']}\n", done.stderr
