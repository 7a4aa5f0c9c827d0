"""The user of a sandbox: never the engine's own where the kernel allows another."""

import json
import os
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest

from engine.environments.sandbox.child import Child
from engine.environments.sandbox.watch import Deadline
from tests.engine.environments.sandboxed import copy_for_anybody, marked, sandbox

__all__ = ["sandbox"]
pytestmark = pytest.mark.usefixtures("sandbox")
PYTHON: Final = Path("/usr/bin/python3")
SOMEBODY: Final = 0x5FFFFFFE
FIRST_SUBORDINATE: Final = 0x5F000000
NUM_SUBORDINATE: Final = 65_536

# Gives this machine a user with subordinate users, in a mount namespace that ends with the test.
ADDS_USER = """
set -eu
for name in passwd subuid subgid; do
    { cat "/etc/$name" 2>/dev/null || true; cat "$1/$name"; } > "$1/$name.bound"
    [ -e "/etc/$name" ] && mount --bind "$1/$name.bound" "/etc/$name"
done
shift
exec "$@"
"""
RUNS = """
import json, os, sys, time
from pathlib import Path
from engine.environments.sandbox import child, python_tree
from engine.environments.sandbox.outcome import Limits
from engine.environments.sandbox.watch import Deadline
child.parent_of_groups = lambda: None
order = json.load(sys.stdin)
if order["is_closed"]:
    python_tree.PythonTree.is_public = property(lambda tree: False)

def users():
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes().split(b"\\0")
            if order["mark"].encode() in b"".join(command) and command[0] == b"/python/bin/python3":
                found.append((entry / "status").read_text().split("Uid:")[1].split()[0])
        except OSError:
            pass
    return sorted(set(found))

limits = Limits(disk_bytes=int(order["mark"]), wall_s=60)
running = child.Child(files={"main.py": "print(1, flush=True)\\nimport time\\ntime.sleep(60)"}, limits=limits)
began = running.pump(lambda: running.has_printed, Deadline(60))
during = users()
outcome = running.end()
until = time.monotonic() + 30
while users() and time.monotonic() < until:
    time.sleep(0.05)
print(json.dumps({"began": began, "during": during, "after": users(), "outcome": str(outcome)}))
"""


def test_a_sandbox_of_root_is_a_user_of_its_own() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become any other user")
    users = []
    for _ in range(2):
        limits = marked(wall_s=60)
        running = Child(files={"main.py": "print(1, flush=True)\nimport time\ntime.sleep(60)"}, limits=limits)
        running.pump(lambda: running.has_printed, Deadline(60))  # noqa: B023 - called at once
        users.append(users_of(str(limits.disk_bytes)))
        running.end()
    assert all(0 not in uids and len(uids) == 1 for uids in users) and users[0] != users[1]


def users_of(mark: str) -> set[int]:
    """The users of processes that run sandboxed code; an outer bubblewrap, which binds a closed Python, is root's."""
    uids = set()
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError):  # processes may end in between
            command = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            if mark in "".join(command) and command[0] == "/python/bin/python3":
                uids |= {int(user) for user in (entry / "status").read_text().split("Uid:")[1].split("\n")[0].split()}
    return uids


@pytest.mark.parametrize("is_closed", [False, True], ids=["any Python", "a Python under a closed home"])
def test_ordinary_users_sandbox_is_a_subordinate_user(tmp_path: Path, is_closed: bool) -> None:
    report = run_as_user_with_subordinates(tmp_path, is_closed=is_closed)
    assert report["began"], report
    assert len(report["during"]) == 1 and int(report["during"][0]) >= FIRST_SUBORDINATE, report
    assert report["after"] == []


def run_as_user_with_subordinates(folder: Path, *, is_closed: bool) -> Any:
    if os.geteuid() != 0:
        pytest.skip("only root can become a user unknown to this machine")
    if not PYTHON.exists() or shutil.which("newuidmap") is None:
        pytest.skip(f"no {PYTHON}, which any user may read, or no newuidmap (package uidmap)")
    copy_for_anybody(folder)
    (folder / "passwd").write_text(f"somebody:x:{SOMEBODY}:{SOMEBODY}::/:/bin/sh\n")
    for name in ("subuid", "subgid"):
        (folder / name).write_text(f"somebody:{FIRST_SUBORDINATE}:{NUM_SUBORDINATE}\n")
    becomes = ["setpriv", "--reuid", str(SOMEBODY), "--regid", str(SOMEBODY), "--clear-groups", "--"]
    done = subprocess.run(
        ["unshare", "--mount", "--", "sh", "-c", ADDS_USER, "sh", str(folder), *becomes, str(PYTHON), "-c", RUNS],
        input=json.dumps({"is_closed": is_closed, "mark": str(marked().disk_bytes)}),
        capture_output=True, text=True, cwd=folder, env={"PATH": os.environ["PATH"]}, timeout=180,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_sandbox_without_subordinate_users_is_the_engines_user(monkeypatch: pytest.MonkeyPatch) -> None:
    from engine.environments.sandbox import users

    monkeypatch.setattr(users, "_num_subordinate", lambda: 0)
    monkeypatch.setattr(os, "geteuid", lambda: SOMEBODY)
    assert users.stranger() is None
    monkeypatch.setattr(users, "_num_subordinate", lambda: NUM_SUBORDINATE)
    drawn = {users.stranger() for _ in range(8)}
    assert len(drawn) > 1 and all(other is not None and other.rules and "0" not in other.becomes for other in drawn)
