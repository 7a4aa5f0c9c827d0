"""A virtual environment, made from the locks; or the tools added to a finished one.

Invariants:
- pip resolves nothing (--no-deps) and takes no file whose hash the locks do not know (--require-hashes);
- two runs at once do the work once: the second waits for the first;
- nothing depends on a script's #! line, which a path with a space breaks: always `python -m`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import sys
from collections.abc import Iterator

from infra.setup.machine import GIB, check_compiler, check_disk, check_modules, free_bytes, temporary_folder
from infra.setup.paths import Paths
from infra.setup.stages import run_stage
from infra.setup.stamp import finish, is_finished
from infra.setup.terminal import Refusal, say

FIRST_INSTALL_BYTES = 6 * GIB  # either: 2.4 to 3 GB unpacked, 1 GB of downloads in pip's cache, and room for runs
CUDA_BYTES = 9 * GIB  # the CUDA libraries of torch: 3 GB of downloads, 5 GB unpacked
TEMPORARY_BYTES = 1 * GIB  # pip unpacks the largest file, torch, under TMPDIR
NEEDS_CUDA = re.compile(r"^Requires-Dist: (nvidia-|cuda-|triton)(?!.*\bextra\b)", re.MULTILINE)
# Where the judges of untrusted code are installed: they are tried once, where there is a sandbox.
RUNS_JUDGES = ("local", "dev")
# What the line on the terminal calls an installation.
TITLES = {
    "local": "packages",
    "dev": "packages and tools",
    "vllm": "vLLM and packages",
    "vllm-cuda": "vLLM for CUDA, packages",
}

VLLM_ENGINE = "import ray, vllm.v1.engine.llm_engine"
# Of vLLM for CPUs: without libnuma it is imported, warns that its kernels are not, and fails once a job begins.
VLLM_KERNELS = (
    "import torch; from vllm.platforms.cpu import CpuPlatform as c; c.import_kernels(); "
    "torch.ops._C.init_cpu_memory_env"
)


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
            make_anew(paths, lock)
        run_stage(paths, TITLES[lock], pip_install(paths, lock))
        run_stage(paths, "check", check_command(paths, lock))
        if lock in RUNS_JUDGES:
            # Where the sandbox reads it nothing can be written: each process would compile a thousand files again.
            run_stage(paths, "bytecode", [str(paths.python), "-W", "ignore", "-c", "import reasoning_gym, math_verify"])
            run_stage(paths, "sandbox", [str(paths.python), "-m", "engine.environments.trial"])
        finish(paths, lock)
        say("  Set up.")


@contextlib.contextmanager
def only_one(paths: Paths) -> Iterator[None]:
    paths.log.parent.mkdir(parents=True, exist_ok=True)
    with (paths.state / "setup.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("Another set-up of this copy is running: waiting for it.")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def make_anew(paths: Paths, lock: str) -> None:
    check_disk(free_bytes(paths.state), FIRST_INSTALL_BYTES, paths.state)
    check_disk(free_bytes(temporary_folder()), TEMPORARY_BYTES, temporary_folder())
    say(f"Setting up Laminar in .laminar/{paths.venv.name} (once; a few minutes, most of it downloads)")
    paths.log.write_text("", encoding="utf-8")
    interpreter = getattr(sys, "_base_executable", None) or sys.executable
    run_stage(paths, "virtual environment", [interpreter, "-m", "venv", "--clear", str(paths.venv)])
    install_torch(paths)
    if not NEEDS_CUDA.search(torch_metadata(paths)):
        if lock == "vllm-cuda":
            raise Refusal(
                "vLLM for CUDA needs torch's CUDA build, and pip found its CPU build first: take that wheel out of the "
                "folders that PIP_FIND_LINKS and pip's configuration name, or ask for vLLM as built for CPUs: "
                "make vllm VLLM=cpu."
            )
    else:
        say("  This torch is the CUDA build, with 5 GB of libraries. Without an NVIDIA GPU, a CPU wheel of the same")
        say("  version in a folder that PIP_FIND_LINKS names does as well.")
        check_disk(free_bytes(paths.state), CUDA_BYTES, paths.state)
        run_stage(paths, "CUDA libraries", pip_install(paths, "cuda"))


def install_torch(paths: Paths) -> None:
    """Fetches without hashes and installs with them: with hashes, pip skips the CPU wheel of a local folder, whose
    address has none, and takes the index's CUDA build."""
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
    """Checks that vLLM's engine can be imported and, on a CPU, that its kernels are there: vLLM only warns of missing
    ones. Its requirement of torchvision and the like is not checked: they break it on a CPU and are left out."""
    if lock.startswith("vllm"):
        kernels = f"; {VLLM_KERNELS}" if lock == "vllm" else ""
        return [str(paths.python), "-c", f"{VLLM_ENGINE}{kernels}"]
    return [*pip(paths), "check"]


def torch_metadata(paths: Paths) -> str:
    found = sorted(paths.venv.glob("lib/python3*/site-packages/torch-*.dist-info/METADATA"))
    return found[0].read_text(encoding="utf-8") if found else ""
