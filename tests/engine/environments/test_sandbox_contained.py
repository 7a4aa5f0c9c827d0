"""The sandbox in a container: it starts with a read-only /proc/sys and under the profile that we ship, and its own
filter keeps the code inside from making namespaces."""

import json
from pathlib import Path

import pytest

from infra.seccomp.profile import BUBBLEWRAP_NEEDS, DEFAULT, PROFILE, Rule, made, resolved, written
from tests.engine.environments.contained import output_in_a_container
from tests.engine.environments.sandboxed import sandbox

__all__ = ["sandbox"]
pytestmark = [pytest.mark.sandbox, pytest.mark.usefixtures("sandbox")]
RUNS = "from engine.environments.sandbox.run import run_python\noutcome = run_python({script!r})\n"
PRINTS = RUNS.format(script="print(6 * 7)") + "print(type(outcome).__name__, getattr(outcome, 'output', outcome))"
# Every way to make a namespace or enter one, also by the x32 numbers of the same calls.
TRIES = """
import ctypes, os
call = ctypes.CDLL(None, use_errno=True).syscall
kinds = (0x80, 0x20000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000)
arguments = (ctypes.c_uint64 * 11)(0x10000000, 0, 0, 0, 17)
here = os.open("/tmp", os.O_RDONLY)
tries = {
    **{f"unshare {kind:#x}": (272, kind) for kind in kinds},
    **{f"clone {kind:#x}": (56, kind | 17, 0, 0, 0, 0) for kind in kinds[1:]},
    "clone3": (435, arguments, 88),
    "setns": (308, here, 0),
    "unshare of x32": (0x40000000 | 272, 0x10000000),
    "clone of x32": (0x40000000 | 56, 0x10000000 | 17, 0, 0, 0, 0),
    "mount": (165, b"none", b"/tmp", b"tmpfs", 0, 0),
    "a high bit": (56, ctypes.c_uint64(0xFFFFFFFF10000011), 0, 0, 0, 0),
}
for name, words in tries.items():
    if call(*words) != -1:
        print("MADE", name)
        os._exit(3)
    print(name, os.strerror(ctypes.get_errno()))
"""


def test_it_starts_where_proc_sys_is_read_only() -> None:
    assert output_in_a_container(PRINTS).startswith("Finished Output(stdout='42\\n'")


def test_it_starts_under_the_profile_that_we_ship() -> None:
    assert output_in_a_container(PRINTS, profile=PROFILE).startswith("Finished Output(stdout='42\\n'")


@pytest.mark.parametrize("rule", BUBBLEWRAP_NEEDS, ids=lambda rule: rule["names"][0])
def test_sandbox_needs_every_rule_of_the_profile(rule: Rule, tmp_path: Path) -> None:
    rules = [each for each in made()["syscalls"] if each != rule]
    (tmp_path / "less.json").write_text(written({**made(), "syscalls": rules}))
    assert output_in_a_container(PRINTS, profile=tmp_path / "less.json").startswith("Refused")


def test_docker_default_profile_is_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "default.json").write_text(written(resolved(json.loads(DEFAULT.read_text()))))
    output = output_in_a_container(PRINTS, profile=tmp_path / "default.json")
    assert output.startswith("Refused the sandbox did not start: unshare") and "not permitted" in output


def test_inside_nothing_makes_a_namespace_or_enters_one() -> None:
    output = output_in_a_container(RUNS.format(script=TRIES) + "print(outcome, outcome.output)", profile=PROFILE)
    assert output.startswith("ended with exit code 0") and "MADE" not in output
    assert output.count("Operation not permitted") == 18 and output.count("Function not implemented") == 3
