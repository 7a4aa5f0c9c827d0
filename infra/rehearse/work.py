"""The work folder of a rehearsal, and the commands that run for it, whose output is in its log.

Invariant: everything that a rehearsal makes lies in this folder, or within the enclosure whose first process it names.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from infra.local.home import PROJECT
from infra.setup.terminal import Refusal, say, show

LAST_LINES = 15


@dataclass(frozen=True, slots=True)
class Work:
    folder: Path

    @property
    def tools(self) -> Path:
        """Programs of this machine's Debian, unpacked and not installed."""
        return self.folder / "tools"

    @property
    def tree(self) -> Path:
        """A Debian 13 with Docker in it, that dockerd and its client take for the root."""
        return self.folder / "tree"

    @property
    def shared(self) -> Path:
        """Seen under one path by this machine and from within the tree."""
        return self.folder / "shared"

    @property
    def base(self) -> Path:
        """A Debian 12 in an archive, the base of the stand-ins."""
        return self.shared / "debian.tar"

    @property
    def wheels(self) -> Path:
        return self.folder / "wheels"

    @property
    def torch(self) -> Path:
        return self.folder / "torch"

    @property
    def socket(self) -> Path:
        return self.shared / "docker.sock"

    @property
    def project(self) -> Path:
        """A copy as an operator has it, with a .env in it."""
        return self.shared / "laminar"

    @property
    def environment_file(self) -> Path:
        return self.project / ".env"

    @property
    def certificate(self) -> Path:
        return self.shared / "certificate.pem"

    @property
    def key(self) -> Path:
        return self.shared / "key.pem"

    @property
    def backups(self) -> Path:
        return self.shared / "backups"

    @property
    def customer(self) -> Path:
        """The first person's key and project."""
        return self.folder / "customer.json"

    @property
    def first_process(self) -> Path:
        """The number of the enclosure's first process, as this machine counts."""
        return self.folder / "first_process"

    @property
    def log(self) -> Path:
        return self.folder / "rehearse.log"

    @property
    def control_group(self) -> str:
        return f"laminar-rehearse-{sha256(str(self.folder).encode()).hexdigest()[:8]}"

    @property
    def is_ours(self) -> bool:
        return self.log.is_file()

    def take_folder(self) -> None:
        """It is removed with all that is in it: one that holds anything else is refused."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self.is_ours and any(self.folder.iterdir()):
            raise Refusal(f"--work must name a new or empty folder, for all of it is removed, got {self.folder}.")
        self.log.touch()

    def copy_project(self) -> None:
        """Replaces the copy by the current files. Keeps .env and folders, which running containers may have mounted."""
        unversioned = shutil.ignore_patterns(".git", ".laminar", ".env", "__pycache__", ".*_cache", ".hypothesis")
        for old in self.project.rglob("*"):
            if not old.is_dir() and old != self.environment_file:
                old.unlink()
        shutil.copytree(PROJECT, self.project, ignore=unversioned, dirs_exist_ok=True)

    def run(self, command: Sequence[str | Path], **environment: str) -> str:
        """What the command printed. Its failure is a refusal that shows its last lines."""
        words = [str(word) for word in command]
        with self.log.open("a") as log:
            log.write(f"\n$ {' '.join(words)}\n")
            log.flush()
            done = subprocess.run(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=os.environ | environment,
            )
            log.write(done.stdout)
        if done.returncode != 0:
            lines = "\n    ".join(self.log.read_text(errors="replace").splitlines()[-LAST_LINES:])
            raise Refusal(
                f"`{' '.join(words[:6])} …` ended with {done.returncode}:\n    {lines}\n  The whole: {self.log}"
            )
        return done.stdout

    def start(self, command: Sequence[str | Path], name: str, **environment: str) -> subprocess.Popen[bytes]:
        """A process that stays, in a session of its own, with a log of its own."""
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [str(word) for word in command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=os.environ | environment,
            )


@contextmanager
def stage(title: str) -> Iterator[None]:
    """A line on the terminal with the seconds that it took."""
    show(f"  {title:<58}")
    started = time.monotonic()
    try:
        yield
    except BaseException:
        say("failed")
        raise
    say(f"{time.monotonic() - started:6.1f} s")


def until(found: Callable[[], str], *, within_s: float, what: str) -> None:
    """Waits until `found` returns nothing; it returns the missing things."""
    deadline = time.monotonic() + within_s
    while missing := found():
        if time.monotonic() > deadline:
            raise Refusal(f"{what}: after {within_s:.0f} s still {missing}")
        time.sleep(1)
