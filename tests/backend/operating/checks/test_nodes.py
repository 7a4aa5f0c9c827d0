"""A node's report is judged part by part; a cluster that cannot run Laminar's jobs is found."""

from typing import Any

import pytest

from backend.environment import Environment
from backend.operating.checks import nodes
from backend.pools.models import ResourcePool
from engine.spec.node_report import NodeAsset, NodeReport, NodeReports, spec_version
from tests.backend.operating.checks.conftest import faults
from tests.backend.operating.conftest import Broken, Dashboard


def _report(**changes: Any) -> NodeReport:
    well = {"node_id": "0" * 56, "address": "10.0.0.1", "clock": 1_000.0, "versions": {"torch": "2.13.0"}}
    return NodeReport.model_validate(well | {"spec": spec_version(), "free_bytes": 10**12} | changes)


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, set()),
        ({"silent": "no answer within 60 s"}, {"nodes.silent"}),
        ({"folder": "PermissionError: /store/jobs"}, {"nodes.folder"}),
        ({"bucket": "ClientError: AccessDenied"}, {"nodes.bucket"}),
        ({"control": "OSError: http://web:8000 answers 301"}, {"nodes.control"}),
        ({"sandbox": "OSError: the sandbox did not start"}, {"nodes.sandbox"}),
        ({"spec": "0123456789abcdef"}, {"nodes.release"}),
        ({"versions": {"ray": "2.60.0"}}, {"nodes.packages"}),
        ({"clock": 900.0}, {"clock.apart"}),
        ({"free_bytes": 1_000}, {"disk.full"}),
    ],
)
def test_each_fault_of_a_node_is_found(changes: dict[str, Any], found: set[str]) -> None:
    judged = list(nodes.judge_node(_report(**changes), 999.0, 1_010.0, runs_jobs=True))
    assert faults(judged) == found
    assert all("10.0.0.1" in finding.observation for finding in judged)


def test_a_head_that_runs_no_actors_needs_no_sandbox() -> None:
    judged = nodes.judge_node(_report(sandbox="OSError: none here"), 999.0, 1_010.0, runs_jobs=False)
    assert faults(judged) == set()


@pytest.mark.parametrize(
    ("shared_gb", "runs_jobs", "found"),
    [(4, True, {"nodes.shared_memory"}), (8, True, set()), (4, False, set()), (0, True, set())],
)
def test_shared_memory_below_the_largest_model_is_found(shared_gb: int, runs_jobs: bool, found: set[str]) -> None:
    """A node of another release reports no shared memory: 0 is unknown."""
    report = _report(shared_bytes=shared_gb * 10**9, object_store_bytes=10**9)
    largest = NodeAsset(name="Qwen3-0.6B", num_bytes=1_200_000_000)
    judged = list(nodes.judge_node(report, 999.0, 1_010.0, runs_jobs=runs_jobs, largest=largest))
    assert faults(judged) == found
    assert all("Qwen3-0.6B (1.2 GB) takes up to 7.6 GB: 8gb" in finding.observation for finding in judged if found)


def test_a_report_comes_through_a_log_with_other_lines() -> None:
    reports = NodeReports(nodes=[_report(), _report(silent="gone")])
    assert NodeReports.found_in(f"a warning of Ray's\n{reports.line()}\nand one more") == reports
    assert NodeReports.found_in("a warning of Ray's") is None


@pytest.mark.django_db
def test_cluster_that_cannot_run_our_jobs_is_found(with_ray: Environment) -> None:
    assert faults(nodes.check_nodes(with_ray)) == {"nodes.no_answer"}


@pytest.mark.django_db
def test_nodes_of_a_pool_s_own_ray_are_looked_at_from_within_too(with_ray: Environment, dashboard: Dashboard) -> None:
    ResourcePool.objects.create(name="here", flavor="cpu", capacity=8)
    ResourcePool.objects.create(name="east", flavor="cpu", capacity=8, ray_url=dashboard.url + "/east")
    dashboard.token = ""
    dashboard.answers["/east/api/v0/nodes"] = dashboard.answers["/api/v0/nodes"]
    messages = [finding.observation for finding in nodes.check_nodes(with_ray)]
    assert [line.partition(":")[0] for line in messages] == [dashboard.url.partition(":")[0], "the site's own Ray"]
    assert messages[0].startswith(dashboard.url + "/east: ")


@pytest.mark.django_db
def test_unreachable_cluster_is_left_to_the_check_of_ray(broken: Broken, dashboard: Dashboard) -> None:
    assert not list(nodes.check_nodes(broken(ray_url="http://127.0.0.1:9")))
