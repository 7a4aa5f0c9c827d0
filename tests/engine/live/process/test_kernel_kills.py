"""A part's death is an OOM kill if its host has counted a kill since the part's last report."""

from pathlib import Path
from typing import Any

import pytest

from engine.live.process import kernel_kills
from engine.live.process.kernel_kills import HostKills, KernelKills, KillReporter

pytestmark = pytest.mark.ray


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
    kills.record("rank 1", HostKills(node=node, num_kills=3))
    assert not kills.explain("rank 1")
    kills.record("rank 1", HostKills(node=node, num_kills=3))
    counted(tmp_path / "vmstat", 4)
    assert kills.explain("rank 1") and not kills.explain("rank 1")
    assert not kills.explain("rank 2"), "rank 2 has never reported"


def test_host_that_is_gone_explains_nothing(node: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_kills, "ANSWERED_WITHIN_S", 1.0)
    kills = KernelKills(counted(tmp_path / "vmstat", 3))
    kills.record("rollout/1", HostKills(node="e" * len(node), num_kills=0))
    assert not kills.explain("rollout/1")


@pytest.mark.usefixtures("node")
def test_part_reports_host_counter_first_and_on_each_rise(tmp_path: Path) -> None:
    reporter = KillReporter(counted(tmp_path / "vmstat", 3))
    reports: list[Any] = [reporter.news(), reporter.news()]
    counted(tmp_path / "vmstat", 4)
    reports.append(reporter.news())
    assert [each and each.num_kills for each in reports] == [3, None, 4]
    assert KillReporter(tmp_path / "absent").news() == HostKills(node=reports[0].node, num_kills=0)
