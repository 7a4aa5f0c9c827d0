"""Makes .laminar/venv from the locks: `make demo`, `make up` and `make test` run this first. With --vllm it makes
.laminar/vllm, the environment of rollout engines that are vLLM: `make vllm` and `make test`.

Only the standard library, and words that Python 3.8 can still parse: an old interpreter must come far enough to say
what is wrong.

Invariants:
- a virtual environment counts as finished only once its stamp is written, last: what was interrupted is made anew;
- pip resolves nothing (--no-deps) and takes no file whose hash the locks do not know (--require-hashes);
- two runs at once do the work once: the second waits for the first;
- nothing depends on a script's #! line, which a path with a space breaks: always `python -m`.
"""

# Over budget: one file, because it runs before anything else of the project can be imported.

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OLDEST_PYTHON = (3, 11)
NEWER_PYTHONS = ("python3.13", "python3.12", "python3.11")
GIB = 1024**3
FIRST_INSTALL_BYTES = 6 * GIB  # either: 2.4 to 3 GB unpacked, 1 GB of downloads in pip's cache, and room for runs
CUDA_BYTES = 9 * GIB  # the CUDA libraries of torch: 3 GB of downloads, 5 GB unpacked
TEMPORARY_BYTES = 1 * GIB  # pip unpacks the largest file, torch, under TMPDIR
LAST_LINES = 12
NEEDS_CUDA = re.compile(r"^Requires-Dist: (nvidia-|cuda-|triton)(?!.*\bextra\b)", re.MULTILINE)

# What pip's output says, and what it means to somebody who wants to see a demo. The first match wins.
DIAGNOSES = (
    (
        "No space left on device|Disk quota exceeded",
        "The disk is full: free some space (a first set-up takes 6 GiB) and run the command again.",
    ),
    (
        "DO NOT MATCH THE HASHES",
        "A file is not one that the locks name: a broken download, an altering mirror, or a build of torch that nobody "
        "has added. Run the command again with PIP_NO_CACHE_DIR=1; if it stays so, do not install from there.",
    ),
    (
        "name resolution|Name or service not known|NewConnectionError|Network is unreachable|ConnectTimeout"
        "|Read timed out|ProxyError|Connection refused|Connection reset",
        "No network, or no way to the package index: connect, or name a proxy (HTTPS_PROXY), a mirror (PIP_INDEX_URL) "
        "or a folder of wheels (PIP_FIND_LINKS), and run the command again. What was downloaded is kept.",
    ),
    (
        "CERTIFICATE_VERIFY_FAILED|SSLError",
        "The package index's certificate is not trusted here: set PIP_CERT to your authority's file and run it again.",
    ),
    (
        "No matching distribution found",
        "The package index has no such file for this machine: Laminar is made for Linux on x86-64 with Python 3.11 to "
        "3.13.",
    ),
    (
        r"Python\.h|error: command '.*(gcc|cc|g\+\+)|Failed building wheel",
        "A package had to be compiled and that failed: install Python's headers and a compiler (on Debian and Ubuntu "
        "`apt-get install build-essential python3-dev`), or use Python 3.11 to 3.13.",
    ),
    ("[Pp]ermission denied", "A folder cannot be written: has another user set this copy of Laminar up?"),
    ("Killed|MemoryError", "The memory ran out: close something large (2 GB must be free) and run it again."),
)


class Refusal(Exception):
    """What is wrong, and what to do about it, in one sentence."""


class Paths:
    """Where one copy of Laminar keeps what this module reads and makes of one environment."""

    def __init__(self, root: Path, environment: str = "venv") -> None:
        self.locks = root / "infra" / "locks"
        self.state = root / ".laminar"
        self.venv = self.state / environment
        self.python = self.venv / "bin" / "python"
        self.stamp = self.venv / "laminar-stamp.json"
        self.log = self.state / "logs" / ("setup.log" if environment == "venv" else f"setup-{environment}.log")
        self.wheels = self.state / "wheels"


# What each lock's environment is made from beside torch, and the line that prints what an installation is for.
LAYERS = {"local": ["local"], "dev": ["local", "dev"], "vllm": ["vllm"]}
TITLES = {"local": "packages", "dev": "packages and tools", "vllm": "vLLM and packages"}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="make .laminar/venv or .laminar/vllm from the hash-pinned locks")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--dev", action="store_true", help="with the tools of `make test` and `make lint`")
    which.add_argument("--vllm", action="store_true", help=".laminar/vllm instead of .laminar/venv")
    chosen = parser.parse_args(arguments)
    try:
        check_python(sys.version_info[:3])
        if chosen.vllm:
            set_up(Paths(ROOT, "vllm"), "vllm")
        else:
            set_up(Paths(ROOT), "dev" if chosen.dev else "local")
    except Refusal as refusal:
        say(f"laminar set-up: {refusal}")
        if chosen.vllm:
            say("  To leave vLLM and its tests out: make test VLLM=0")
        return 1
    except OSError as error:
        say(f"laminar set-up: {error.strerror}: {error.filename}. {meaning_of(str(error))}")
        return 1
    except KeyboardInterrupt:
        say("\nlaminar set-up: interrupted. Run the command again: it starts afresh and reuses what was downloaded.")
        return 130
    return 0


def set_up(paths: Paths, lock: str) -> None:
    if is_finished(paths, lock):
        return
    with only_one(paths):
        if is_finished(paths, lock):  # by the run that this one waited for
            return
        check_modules()
        check_compiler(os.environ.get("PATH", ""))
        if lock == "dev" and is_finished(paths, "local"):
            paths.stamp.unlink()
        else:
            make_anew(paths)
        run_stage(paths, TITLES[lock], pip_install(paths, lock))
        run_stage(paths, "check", check_command(paths, lock))
        paths.stamp.write_text(json.dumps(wanted(paths, lock)), encoding="utf-8")
        say("  Set up.")


# What this machine must have


def check_python(version: tuple[int, ...]) -> None:
    if version[:2] >= OLDEST_PYTHON:
        return
    newer = next((name for name in NEWER_PYTHONS if shutil.which(name)), None)
    advice = (
        f"run the command again with PYTHON={newer} at its end"
        if newer
        else "install Python 3.11 or newer with its venv module (on Debian 12 and Ubuntu 24.04 `apt-get install "
        "python3 python3-venv`) and run the command again, naming it if need be: PYTHON=python3.11"
    )
    raise Refusal(f"Laminar needs Python 3.11 or newer and this is {'.'.join(map(str, version))}: {advice}.")


def check_modules() -> None:
    missing = [name for name in ("venv", "ensurepip") if importlib.util.find_spec(name) is None]
    if missing:
        raise Refusal(
            f"this Python has no {' and no '.join(missing)} module: install it (on Debian and Ubuntu "
            f"`apt-get install python{sys.version_info[0]}.{sys.version_info[1]}-venv`) and run the command again."
        )


def check_compiler(search_path: str) -> None:
    if not any(shutil.which(name, path=search_path) for name in ("cc", "gcc", "clang")):
        raise Refusal(
            "there is no C compiler (cc, gcc or clang) on the PATH; packages without a ready-made file for this "
            "machine and torch's compiled kernels are built with it: install one (on Debian and Ubuntu `apt-get "
            "install build-essential`) and run the command again."
        )


def check_disk(free: int, needed: int, folder: Path) -> None:
    if free < needed:
        raise Refusal(
            f"the disk of {folder} has {free / GIB:.1f} GiB free and the set-up needs {needed / GIB:.0f} GiB: free "
            "some space, or move this copy of Laminar (for a temporary folder: name another with TMPDIR)."
        )


def free_bytes(folder: Path) -> int:
    return shutil.disk_usage(folder).free


def temporary_folder() -> Path:
    return Path(os.environ.get("TMPDIR") or "/tmp")


# The stamp


def wanted(paths: Paths, lock: str) -> dict[str, str]:
    """What a finished environment was made from: the interpreter's version and the locks, by digest."""
    names = ["torch", "cuda", *LAYERS[lock]]
    digests = {name: hashlib.sha256((paths.locks / f"{name}.txt").read_bytes()).hexdigest() for name in names}
    return {"python": ".".join(map(str, sys.version_info[:3])), **digests}


def made_from(paths: Paths) -> dict[str, str]:
    """Empty for an environment that is missing, unfinished, or whose interpreter is gone."""
    if not paths.python.exists():
        return {}
    try:
        stamp = json.loads(paths.stamp.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) else {}


def is_finished(paths: Paths, lock: str) -> bool:
    return wanted(paths, lock).items() <= made_from(paths).items()


# The work


@contextlib.contextmanager
def only_one(paths: Paths) -> Iterator[None]:
    paths.log.parent.mkdir(parents=True, exist_ok=True)
    with (paths.state / "setup.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("Another set-up of this copy is at work: waiting for it.")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def make_anew(paths: Paths) -> None:
    check_disk(free_bytes(paths.state), FIRST_INSTALL_BYTES, paths.state)
    check_disk(free_bytes(temporary_folder()), TEMPORARY_BYTES, temporary_folder())
    say(f"Setting up Laminar in .laminar/{paths.venv.name} (once; a few minutes, most of it downloads)")
    paths.log.write_text("", encoding="utf-8")
    interpreter = getattr(sys, "_base_executable", None) or sys.executable
    run_stage(paths, "virtual environment", [interpreter, "-m", "venv", "--clear", str(paths.venv)])
    install_torch(paths)
    if NEEDS_CUDA.search(torch_metadata(paths)):
        say("  This torch is the CUDA build, with 5 GB of libraries. Without an NVIDIA GPU, a CPU wheel of the same")
        say("  version in a folder that PIP_FIND_LINKS names does as well.")
        check_disk(free_bytes(paths.state), CUDA_BYTES, paths.state)
        run_stage(paths, "CUDA libraries", pip_install(paths, "cuda"))


def install_torch(paths: Paths) -> None:
    """Fetched without hashes, installed with: asked for with hashes, pip passes over the CPU wheel of a local folder,
    which carries none in its address, and takes the index's CUDA build."""
    shutil.rmtree(paths.wheels, ignore_errors=True)
    lock = (paths.locks / "torch.txt").read_text(encoding="utf-8")
    version = re.findall(r"^torch==\S+", lock, re.MULTILINE)[0]
    fetch = [*pip(paths), "download", "--no-deps", "--only-binary", ":all:", "--dest", str(paths.wheels), version]
    run_stage(paths, "torch, download", fetch)
    run_stage(paths, "torch", [*pip_install(paths, "torch"), "--no-index", "--find-links", str(paths.wheels)])
    shutil.rmtree(paths.wheels)


def pip(paths: Paths) -> list[str]:
    return [str(paths.python), "-m", "pip"]


def pip_install(paths: Paths, lock: str) -> list[str]:
    file = str(paths.locks / f"{lock}.txt")
    return [*pip(paths), "install", "--no-deps", "--require-hashes", "--no-compile", "-r", file]


def check_command(paths: Paths, lock: str) -> list[str]:
    """vLLM names torchvision and its kin, which this environment leaves out because they break it on a CPU: what is
    asked of it is that its engine can be imported."""
    if lock == "vllm":
        return [str(paths.python), "-c", "import ray, vllm.v1.engine.llm_engine"]
    return [*pip(paths), "check"]


def torch_metadata(paths: Paths) -> str:
    found = sorted(paths.venv.glob("lib/python3*/site-packages/torch-*.dist-info/METADATA"))
    return found[0].read_text(encoding="utf-8") if found else ""


def run_stage(paths: Paths, title: str, command: Sequence[str]) -> None:
    """One line on the terminal, everything else in the log."""
    started = time.monotonic()
    with paths.log.open("a", encoding="utf-8") as log:
        log.write(f"\n$ {' '.join(command)}\n")
        log.flush()
        begins_at = log.tell()
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=clean_environment())
        code = watch(process, title, started)
    say(f"{time.monotonic() - started:6.1f} s" if code == 0 else "failed")
    if code != 0:
        with paths.log.open(encoding="utf-8", errors="replace") as log:
            log.seek(begins_at)
            raise Refusal(explain_failure(title, log.read() + ("\nKilled" if code == -9 else ""), paths.log))


def watch(process: subprocess.Popen[bytes], title: str, started: float) -> int:
    """Prints the title; on a terminal the seconds tick behind it. The caller ends the line."""
    ticking = sys.stdout.isatty()
    show(f"  {title:<24}")
    try:
        while True:
            try:
                code = process.wait(timeout=0.5)
                show(f"\r  {title:<24}" if ticking else "")
                return code
            except subprocess.TimeoutExpired:
                if ticking:
                    show(f"\r  {title:<24}{time.monotonic() - started:6.0f} s")
    except KeyboardInterrupt:
        process.terminate()
        process.wait()
        raise


def clean_environment() -> dict[str, str]:
    """The caller's, mirrors and proxies included, less what would send files or imports elsewhere."""
    elsewhere = {"PYTHONPATH", "PYTHONHOME", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_CONSTRAINT"}
    kept = {name: value for name, value in os.environ.items() if name not in elsewhere}
    return {**kept, "PIP_USER": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}


def explain_failure(title: str, output: str, log: Path) -> str:
    lines = [line for line in output.splitlines() if line.strip()][-LAST_LINES:]
    quoted = "".join(f"\n    {line[:200]}" for line in lines)
    return f"the stage \u201c{title}\u201d failed.{quoted}\n  {meaning_of(output)}\n  The whole output: {log}"


def meaning_of(output: str) -> str:
    known = (meaning for pattern, meaning in DIAGNOSES if re.search(pattern, output))
    return next(known, "Read the log, put right what it says, and run the command again.")


def say(sentence: str) -> None:
    show(f"{sentence}\n")


def show(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
