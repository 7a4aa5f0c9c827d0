"""Packages of Debian, downloaded and unpacked into the work folder. Nothing is installed on this machine."""

import shutil
from pathlib import Path

from infra.rehearse.work import Work, stage
from infra.setup.terminal import Refusal

TOOLS = ("mmdebstrap", "slirp4netns")
# The oldest Docker that mounts a folder of a volume is 26, and Debian 12 has 20.10.
ENGINE_RELEASE = "trixie"
ENGINE = ("ca-certificates", "docker.io", "docker-cli", "docker-buildx", "docker-compose", "iptables", "tini")
BASE_RELEASE = "bookworm"
# Of the official Python image are the headers (torch compiles), and dbm.gnu (beat keeps its schedule by it).
BASE = ("ca-certificates", "python3", "python3-venv", "python3-pip", "python3-gdbm", "libpython3.11-dev")


def fetch_tools(work: Work) -> None:
    """The programs that make a Debian in a folder and connect an enclosure, with what this machine lacks of theirs."""
    if (work.tools / "usr").is_dir():
        return
    if not shutil.which("apt-get"):
        raise Refusal("a rehearsal fetches its container engine by apt-get, and this machine has none.")
    with stage("fetch mmdebstrap, slirp4netns"):
        packages = work.folder / "packages"
        (packages / "partial").mkdir(parents=True, exist_ok=True)
        install = ["apt-get", "install", "--download-only", "--yes", "--no-install-recommends", "--reinstall"]
        work.run([*install, "-o", f"Dir::Cache::archives={packages}", *TOOLS])
        unpacked = work.folder / "tools.unfinished"
        for package in sorted(packages.glob("*.deb")):
            work.run(["dpkg-deb", "-x", package, unpacked])
        shutil.rmtree(packages)
        unpacked.rename(work.tools)


def fetch_debians(work: Work) -> None:
    """Fetches the container engine's root folder and the base of the stand-in images."""
    work.shared.mkdir(exist_ok=True)
    _make(work, ENGINE_RELEASE, ENGINE, work.tree)
    _make(work, BASE_RELEASE, BASE, work.base)


def _make(work: Work, release: str, packages: tuple[str, ...], target: Path) -> None:
    """A folder, or an archive where the target ends with .tar; whole or not at all."""
    if target.exists():
        return
    with stage(f"a Debian {release} in {target.name}"):
        unfinished = target.with_name(f"unfinished-{target.name}")
        program, included = work.tools / "usr/bin/mmdebstrap", f"--include={','.join(packages)}"
        work.run([program, "--variant=minbase", included, release, unfinished])
        unfinished.rename(target)


def tool(work: Work, name: str) -> list[str]:
    """The command of an unpacked program, with the path of its libraries."""
    libraries = ":".join(str(folder) for folder in sorted((work.tools / "usr/lib").glob("*-linux-gnu")))
    return ["env", f"LD_LIBRARY_PATH={libraries}", str(work.tools / "usr/bin" / name)]
