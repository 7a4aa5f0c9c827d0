"""A kill by the kernel explains the death of a part whose host has counted one since the part was last heard."""

from pathlib import Path
from typing import Any

import pytest

from engine.live.process import kernel_kills
from engine.live.process.kernel_kills import HostKills, KernelKills, KillTeller

pytestmark = pytest.mark.ray


def counted(vmstat: Path, num_kills: int) -> Path:
    vmstat.write_text(f"nr_free_pages 7\noom_kill {num_kills}\n")
    return vmstat


@pytest.fixture
def node(own_ray: str) -> str:
    import ray

    found: str = ray.get_runtime_context().get_node_id()
    return found


@pytest.mark.parametrize("is_here", [True, False])
def test_host_counter_explains_a_death_once(
    is_here: bool, node: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kills = KernelKills(counted(tmp_path / "vmstat", 3))
    if not is_here:  # then that host is asked
        monkeypatch.setattr(kernel_kills, "_own_node", lambda: "another")
    kills.hear("rank 1", HostKills(node=node, num_kills=3))
    assert not kills.explain("rank 1")
    kills.hear("rank 1", HostKills(node=node, num_kills=3))
    counted(tmp_path / "vmstat", 4)
    assert kills.explain("rank 1") and not kills.explain("rank 1")
    assert not kills.explain("rank 2"), "nobody has ever heard it"


def test_a_host_that_is_gone_explains_nothing(node: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_kills, "ANSWERED_WITHIN_S", 1.0)
    kills = KernelKills(counted(tmp_path / "vmstat", 3))
    kills.hear("rollout/1", HostKills(node="e" * len(node), num_kills=0))
    assert not kills.explain("rollout/1")


@pytest.mark.usefixtures("node")
def test_part_reports_host_counter_first_and_on_each_rise(tmp_path: Path) -> None:
    teller = KillTeller(counted(tmp_path / "vmstat", 3))
    told: list[Any] = [teller.news(), teller.news()]
    counted(tmp_path / "vmstat", 4)
    told.append(teller.news())
    assert [each and each.num_kills for each in told] == [3, None, 4]
    assert KillTeller(tmp_path / "absent").news() == HostKills(node=told[0].node, num_kills=0)
