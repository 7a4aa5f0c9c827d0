"""The files of this machine that the sandbox sees: one Python, its libraries, and packages by name.

    /python/bin/python3    /python/lib/python3.11/…    /python/lib/*.so    /packages/NAME

Invariants:
- nothing else is bound, so there is no home, no repository, no shell, no /etc and no /proc inside;
- nothing is written to bound files, not even bytecode: the set-up and the image compile the packages.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from functools import lru_cache
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Final, NamedTuple

from engine.environments.sandbox.outcome import SandboxUnavailable

HOME: Final = "/python"
PACKAGES: Final = "/packages"
PROGRAM: Final = f"{HOME}/bin/python3"

_LIBRARY = re.compile(r"(?:(\S+) => )?(/\S+) \(0x")
_REQUIREMENT = re.compile(r"[A-Za-z0-9._-]+")
# For windows, terminals and tests, none of which exist inside; they would pull in forty more libraries.
_LEFT_OUT: Final = ("_tkinter", "_curses", "readline", "nis", "_dbm", "_gdbm", "_test", "_xx", "xx", "_ctypes_test")


class Bind(NamedTuple):
    source: str
    target: str


class PythonTree(NamedTuple):
    binds: tuple[Bind, ...]
    loader: Bind
    """The dynamic loader, which the kernel starts for any dynamic program at the path stored in its binary."""
    hidden: tuple[str, ...]
    """Folders inside a bound one that an empty folder covers."""

    @property
    def is_public(self) -> bool:
        """True if every user of this machine may read all bound files."""
        return all(_is_public(Path(bind.source)) for bind in (*self.binds, self.loader))


@lru_cache(maxsize=8)
def python_tree(packages: Sequence[str] = ()) -> PythonTree:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    program = Path(sys.base_prefix, "bin", version)
    library = Path(sysconfig.get_path("stdlib", vars={"installed_base": sys.base_prefix}))
    if not program.is_file() or not library.is_dir():
        raise SandboxUnavailable(f"the sandbox needs a Python in {sys.base_prefix}, with {program} and {library}")
    modules = [path for path in library.glob("lib-dynload/*.so") if not path.name.split(".")[0].startswith(_LEFT_OUT)]
    bound = [bind for name in packages for bind in _package_binds(name)]
    extensions = [path for bind in bound for path in Path(bind.source).rglob("*.so*") if path.is_file()]
    shared, loader = _shared_libraries((program, *modules, *extensions))
    own = {bind.source for bind in bound}
    binds = (
        Bind(str(program.resolve()), PROGRAM),
        Bind(str(library), f"{HOME}/lib/{version}"),
        *(Bind(source, f"{HOME}/lib/{name}") for name, source in sorted(shared.items()) if not _within(source, own)),
        *dict.fromkeys(bound),
    )
    hidden = tuple(f"{HOME}/lib/{version}/{name}" for name in ("site-packages",) if (library / name).is_dir())
    return PythonTree(binds=binds, loader=loader, hidden=hidden)


def _within(source: str, folders: set[str]) -> bool:
    return any(source.startswith(f"{folder}/") for folder in folders)


def _shared_libraries(files: Sequence[Path]) -> tuple[dict[str, str], Bind]:
    ldd = shutil.which("ldd")
    if ldd is None:
        raise SandboxUnavailable("the sandbox needs ldd to list Python's libraries, and ldd is not on the PATH")
    done = subprocess.run([ldd, *files], capture_output=True, text=True, timeout=60, env={"PATH": os.defpath})
    libraries: dict[str, str] = {}
    loader: Bind | None = None
    for name, path in _LIBRARY.findall(done.stdout):
        if name:
            libraries[name] = str(Path(path).resolve())
        elif loader is None:
            loader = Bind(str(Path(path).resolve()), path)
    if loader is None:
        raise SandboxUnavailable(f"ldd finds no loader of {files[0]}: {(done.stderr or done.stdout).strip()[:200]}")
    return libraries, loader


def _package_binds(name: str) -> list[Bind]:
    """A distribution and all that it requires, each at its place in `/packages`."""
    waiting, seen, binds = [name], set[str](), list[Bind]()
    while waiting:
        required = waiting.pop()
        key = re.sub(r"[-_.]+", "-", required).lower()
        if key in seen:
            continue
        seen.add(key)
        try:
            package = distribution(required)
        except PackageNotFoundError as error:
            if required == name:
                raise SandboxUnavailable(f"the package {name} is not installed in the engine's environment") from error
            continue  # required on another platform only
        waiting += [
            match.group()
            for line in package.requires or ()
            if "extra ==" not in line and (match := _REQUIREMENT.match(line))
        ]
        places = {top: Path(str(package.locate_file(top))) for top in sorted(_tops_of(package))}
        binds += [Bind(str(place), f"{PACKAGES}/{top}") for top, place in places.items() if place.exists()]
    return binds


def _tops_of(package: Distribution) -> set[str]:
    """Its top-level entries in site-packages. An older pip without `wheel`, such as Debian 12's, writes no RECORD but a
    list of paths relative to the folder of the distribution's metadata."""
    installed = package.read_text("installed-files.txt")
    if installed is None:
        paths = [path.parts for path in package.files or ()]
    else:
        paths = [Path(line).parts[1:] for line in installed.splitlines() if line.startswith("../")]
    return {parts[0] for parts in paths if parts and parts[0] not in ("..", "__pycache__")}


def _is_public(path: Path) -> bool:
    """Every user may read the file and enter all folders above it."""
    real = path.resolve()
    return all(folder.stat().st_mode & 0o001 for folder in real.parents) and bool(real.stat().st_mode & 0o004)
