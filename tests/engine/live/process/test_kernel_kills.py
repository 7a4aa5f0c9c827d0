"""A part's death is an OOM kill if its host has counted a kill since the part's last report."""

from pathlib import Path
from typing import Any

import pytest

from engine.live.process import kernel_kills
from engine.live.process.kernel_kills import (
    MEASURED_EVERY_S,
    HostUse,
    KernelKills,
    MemoryReport,
    MemoryReporter,
    describe_kill,
)
from engine.process.held_memory import HeldMemory

pytestmark = pytest.mark.ray


GB = 10**9
KILLED = "Ray killed its process: its host was out of memory"


def report(node: str, num_kills: int, *, own: int = 0, shared: int = 0) -> MemoryReport:
    return MemoryReport(node=node, num_kills=num_kills, held=HeldMemory(own=own, shared=shared), host_bytes=64 * GB)


def counted(vmstat: Path, num_kills: int) -> Path:
    vmstat.write_text(f"nr_free_pages 7\noom_kill {num_kills}\n")
    return vmstat


@pytest.fixture
def node(own_ray: str) -> str:
    import ray

    node_id: str = ray.get_runtime_context().get_node_id()
    return node_id


@pytest.mark.parametrize("is_here", [True, False])
def test_host_counter_explains_a_death_once(
    is_here: bool, node: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kills = KernelKills(counted(tmp_path / "vmstat", 3))
    if not is_here:  # the counter is then read by a task on that host
        monkeypatch.setattr(kernel_kills, "_own_node", lambda: "another")
    kills.record("rank 1", report(node, 3))
    assert not kills.explain("rank 1")
    kills.record("rank 1", report(node, 3))
    counted(tmp_path / "vmstat", 4)
    assert kills.explain("rank 1") and not kills.explain("rank 1")
    assert not kills.explain("rank 2"), "rank 2 has never reported"


def test_host_that_is_gone_explains_nothing(node: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_kills, "ANSWERED_WITHIN_S", 1.0)
    kills = KernelKills(counted(tmp_path / "vmstat", 3))
    kills.record("rollout/1", report("e" * len(node), 0))
    assert not kills.explain("rollout/1")


@pytest.mark.usefixtures("node")
def test_part_reports_first_and_as_counter_or_memory_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, held = [0.0], [HeldMemory(own=GB)]
    monkeypatch.setattr(kernel_kills, "held_by_tree", lambda: held[0])
    reporter = MemoryReporter(counted(tmp_path / "vmstat", 3), clock=lambda: now[0])
    reports: list[Any] = [reporter.news(), reporter.news()]
    counted(tmp_path / "vmstat", 4)
    reports.append(reporter.news())
    for own in (GB + GB // 16, 2 * GB, 2 * GB):
        now[0], held[0] = now[0] + MEASURED_EVERY_S, HeldMemory(own=own)
        reports.append(reporter.news())
    seen = [each and (each.num_kills, each.held.own) for each in reports]
    assert seen == [(3, GB), None, (4, GB), None, (4, 2 * GB), None]
    absent = MemoryReporter(tmp_path / "absent").news()
    assert absent is not None and (absent.node, absent.num_kills) == (reports[0].node, 0)


def test_use_of_a_host_names_the_part_that_grew() -> None:
    kills = KernelKills()
    assert kills.use_of_host("rollout/0") is None and describe_kill("Ray", None, "rollout/0") == KILLED
    for part, node, own in (("rollout/0", "a", 6), ("environment/0", "a", 40), ("rollout/1", "b", 60)):
        kills.record(part, report(node, 0, own=own * GB, shared=8 * GB))
    use = kills.use_of_host("rollout/0")
    assert use is not None and use.num_bytes == 54 * GB and use.explains_a_full_host
    held = f"{KILLED}; this job held 54.0 GB of its 64.0 GB"
    assert describe_kill("Ray", use, "rollout/0") == f"{held}, most of it environment/0 (40.0 GB)"
    assert describe_kill("Ray", use, "environment/0") == held


def test_job_that_held_little_of_a_host_does_not_explain_it() -> None:
    use = HostUse(by_part={"rollout/0": HeldMemory(own=6 * GB)}, host_bytes=64 * GB)
    assert not use.explains_a_full_host
    assert (
        describe_kill("Ray", use, "rollout/0")
        == f"{KILLED}; this job held 6.0 GB of its 64.0 GB, so something else took it"
    )
