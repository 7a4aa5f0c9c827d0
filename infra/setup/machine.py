"""Requirements of this machine: a missing one is refused in one sentence with the way to get it."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from pathlib import Path

from infra.setup.terminal import Refusal

OLDEST_PYTHON = (3, 11)
NEWER_PYTHONS = ("python3.13", "python3.12", "python3.11")
GIB = 1024**3
VLLM_LOCKS = {"cpu": "vllm", "cuda": "vllm-cuda"}
# A machine's own, a container's, and that of Windows in its Linux.
NVIDIA_DRIVER = tuple(map(Path, ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/usr/lib/wsl/lib/libcuda.so.1")))


def check_python(version: tuple[int, ...]) -> None:
    if version[:2] >= OLDEST_PYTHON:
        return
    newer = next((name for name in NEWER_PYTHONS if shutil.which(name)), None)
    advice = (
        f"run the command again with PYTHON={newer}"
        if newer
        else "install Python 3.11 or newer with its venv module (on Debian 12 and Ubuntu 24.04 `apt-get install "
        "python3 python3-venv`) and run the command again, naming it if need be: PYTHON=python3.11"
    )
    raise Refusal(f"Laminar needs Python 3.11 or newer; this is {'.'.join(map(str, version))}: {advice}.")


def lock_of_vllm(asked: str) -> str:
    """The lock of the requested build, or by default of the build that this machine can use."""
    if asked and asked not in VLLM_LOCKS:
        raise Refusal(
            f"VLLM must be one of {', '.join(VLLM_LOCKS)}, 0 to leave vLLM out, or empty for the build that fits "
            f"this machine, got {asked!r}."
        )
    return VLLM_LOCKS[asked or ("cuda" if has_nvidia_driver() else "cpu")]


def has_nvidia_driver() -> bool:
    return any(sign.exists() for sign in NVIDIA_DRIVER)


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
