"""Where control groups can be made, with the files of machines and containers faked; test_sandbox_bounds.py tests the
kernel's part."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.environments.sandbox import memory_group
from engine.environments.sandbox.memory_group import MemoryGroup, Parent, parent_of_groups

LIMIT = 512 << 20


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with fake /proc/self and mounted control groups."""
    (tmp_path / "self").mkdir()
    monkeypatch.setattr(memory_group, "_PROC", tmp_path / "self")
    parent_of_groups.cache_clear()
    yield tmp_path
    parent_of_groups.cache_clear()


def show(machine: Path, *, ours: str, mount: str) -> None:
    """`ours` is /proc/self/cgroup, `mount` a line's end of /proc/self/mountinfo."""
    (machine / "self" / "cgroup").write_text(ours)
    root, kind = mount.split(" ", 1)
    (machine / "self" / "mountinfo").write_text(f"30 23 0:26 {root} {machine}/groups rw,nosuid shared:4 - {kind}\n")


def group_at(machine: Path, path: str, *, hands_on: str | None = None) -> Path:
    folder = machine / "groups" / path
    folder.mkdir(parents=True)
    if hands_on is not None:
        (folder / "cgroup.subtree_control").write_text(hands_on)
    return folder


def test_v1_parent_is_the_group_of_this_process(machine: Path) -> None:
    show(machine, ours="9:pids:/x\n4:memory:/user/me\n0::/\n", mount="/ cgroup cgroup rw,memory")
    folder = group_at(machine, "user/me")
    assert parent_of_groups() == Parent(folder, is_v2=False)


def test_v1_parent_in_a_container_is_the_mounted_group(machine: Path) -> None:
    show(machine, ours="4:memory:/docker/abc\n", mount="/docker/abc cgroup cgroup rw,memory")
    folder = group_at(machine, "")
    assert parent_of_groups() == Parent(folder, is_v2=False)


def test_v2_parent_delegates_memory_and_has_no_process(machine: Path) -> None:
    show(machine, ours="0::/user/app/run.scope\n", mount="/ cgroup2 cgroup2 rw,nsdelegate")
    app = group_at(machine, "user/app", hands_on="cpu memory pids")
    (group_at(machine, "user/app/run.scope") / "cgroup.procs").touch()
    assert parent_of_groups() == Parent(app, is_v2=True)


def test_v2_group_above_without_memory_is_left_unchanged(machine: Path) -> None:
    show(machine, ours="0::/system/ours\n", mount="/ cgroup2 cgroup2 rw")
    system = group_at(machine, "system", hands_on="cpu")
    group_at(machine, "system/ours")
    assert parent_of_groups() is None
    assert (system / "cgroup.subtree_control").read_text() == "cpu"


def test_a_machine_without_control_groups_has_none(machine: Path) -> None:
    show(machine, ours="0::/\n", mount="/ tmpfs tmpfs rw")
    assert parent_of_groups() is None


def test_v2_group_has_no_swap_and_is_killed_as_a_whole(machine: Path) -> None:
    group = MemoryGroup(Parent(group_at(machine, ""), is_v2=True), limit_bytes=LIMIT)
    limits = {name: (group.folder / name).read_text() for name in ("memory.max", "memory.swap.max", "memory.oom.group")}
    assert limits == {"memory.max": str(LIMIT), "memory.swap.max": "0", "memory.oom.group": "1"}
    assert group.alarm() is None
    for events, was_exceeded in (("oom 0\noom_kill 0\n", False), ("oom 3\noom_kill 12\noom_group_kill 1\n", True)):
        (group.folder / "memory.events").write_text(f"low 0\nhigh 0\nmax 7\n{events}")
        assert group.was_exceeded() is was_exceeded


def test_only_groups_of_dead_engines_are_removed(machine: Path) -> None:
    show(machine, ours="4:memory:/\n", mount="/ cgroup cgroup rw,memory")
    folder = group_at(machine, "")
    for pid in (1, 1 << 23):  # no process has a number that high
        (folder / f"laminar-sandbox-{pid}-ab").mkdir()
    parent_of_groups()
    assert (folder / "laminar-sandbox-1-ab").exists()
    assert not (folder / f"laminar-sandbox-{1 << 23}-ab").exists()
