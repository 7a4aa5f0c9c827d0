"""Confines a process as a container does, without a container engine: /proc/sys read-only, an ordinary user without
capabilities, and a filter of system calls in the OCI format, loaded by libseccomp as runc does.

    unshare (its own mounts) ─> mount (/proc/sys, read-only) ─> unshare (not root) ─> this file (filter) ─> the command
"""

import ctypes
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest

ROOT: Final = Path(__file__).parents[3]
LIBSECCOMP: Final = "libseccomp.so.2"
_BINDS: Final = (
    "mount --rbind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys && "
    'exec unshare --user --map-user=1000 --map-group=1000 -- "$@"'
)
_ACTIONS: Final = {"SCMP_ACT_ALLOW": 0x7FFF0000, "SCMP_ACT_ERRNO": 0x00050000}
_TESTS: Final = {"SCMP_CMP_NE": 1, "SCMP_CMP_EQ": 4, "SCMP_CMP_MASKED_EQ": 7}
_ARCHITECTURES: Final = {"SCMP_ARCH_X86": b"x86", "SCMP_ARCH_X32": b"x32"}


class _Comparison(ctypes.Structure):
    _fields_ = (
        ("argument", ctypes.c_uint), ("test", ctypes.c_int), ("first", ctypes.c_uint64), ("second", ctypes.c_uint64),
    )  # fmt: skip


def output_in_a_container(code: str, *, profile: Path | None = None) -> str:
    """Runs the code confined. Skips the test if this machine cannot confine a process like that."""
    if shutil.which("unshare") is None:
        pytest.skip("no unshare (util-linux), which makes /proc/sys read-only")
    if profile is not None:
        try:
            ctypes.CDLL(LIBSECCOMP)
        except OSError:
            pytest.skip(f"no {LIBSECCOMP}, which loads a container's filter")
    confines = ["unshare", "--user", "--map-root-user", "--mount", "--", "sh", "-c", _BINDS, "sh"]
    _skip_unless_it_works([*confines, "true"])
    filters = [] if profile is None else [sys.executable, __file__, str(profile)]
    command = [*confines, *filters, sys.executable, "-c", code]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def _skip_unless_it_works(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        pytest.skip(f"/proc/sys cannot be made read-only for a process here: {done.stderr.strip()}")


def confine(profile: dict[str, Any]) -> None:
    """Confines this process and every program that it executes."""
    library = ctypes.CDLL(LIBSECCOMP)
    library.seccomp_init.restype = ctypes.c_void_p
    otherwise = _action(profile["defaultAction"], profile["defaultErrnoRet"])
    context = ctypes.c_void_p(library.seccomp_init(otherwise))
    for name in profile["architectures"]:
        if name in _ARCHITECTURES:
            library.seccomp_arch_add(context, library.seccomp_arch_resolve_name(_ARCHITECTURES[name]))
    for rule in profile["syscalls"]:
        action = _action(rule["action"], rule.get("errnoRet", profile["defaultErrnoRet"]))
        compared = [
            _Comparison(each["index"], _TESTS[each["op"]], each["value"], each.get("valueTwo", 0))
            for each in rule.get("args") or ()
        ]
        for name in rule["names"]:
            number = library.seccomp_syscall_resolve_name(name.encode())
            if number != -1 and action != otherwise:  # -1: a call newer than this library, which stays refused
                array = (_Comparison * len(compared))(*compared)
                failed = library.seccomp_rule_add_array(context, action, number, len(compared), array)
                assert failed == 0, f"{name}: {failed}"
    assert library.seccomp_load(context) == 0


def _action(name: str, errno: int) -> int:
    return _ACTIONS[name] | (errno if name == "SCMP_ACT_ERRNO" else 0)


if __name__ == "__main__":
    confine(json.loads(Path(sys.argv[1]).read_text()))
    os.execvp(sys.argv[2], sys.argv[2:])
