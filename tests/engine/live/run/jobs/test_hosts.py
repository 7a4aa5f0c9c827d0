"""A real job on hosts that join and leave: a late host gets the waiting replica, and after its loss the replica starts
on the next host. The hosts are nodes of one Ray on this machine."""

import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest

from engine.live.run.attempt import Attempt, AttemptPlan
from engine.policy.placement import ROLLOUT_CPUS, SERVICE_CPUS, TRAINER_CPUS
from engine.sinks.memory import MemorySink
from engine.spec.control import ControlRequest
from engine.spec.facts import FactBody, FaultDetected, ReplicasObserved, RunFinished, StepTrained
from engine.spec.job import JobSpec

ROOT = Path(__file__).resolve().parents[5]
WITHIN_S = 240.0
MOST_STEPS = 2_000
# For the trainer, data and the environment, a relay and one replica; a second replica does not fit.
FIRST_HOST_CPUS = TRAINER_CPUS + 3 * SERVICE_CPUS + ROLLOUT_CPUS
CORES = 1.0
PROMPTS, GROUP = 4, 4

SPEC = JobSpec.model_validate(
    {
        "name": "hosts",
        "training": {"steps": MOST_STEPS, "prompts_per_step": PROMPTS, "checkpoint_every": 1_000},
        "algorithm": {"group_size": GROUP},
        "rollout": {"replicas": 2, "max_batch": 16, "max_new_tokens": 40},
        "evaluation": {"prompts": 8},
        "placement": {"min_replicas": 1},
    }
)


class Changing(MemorySink):
    """Adds a host, removes it once its replica has worked, and adds another one."""

    def __init__(self, cluster: Any) -> None:
        super().__init__()
        self._cluster, self._late = cluster, None
        self._seen_at: dict[str, int] = {}
        self._worked: set[int] = set()
        self._steps: list[int] = []

    def requests(self) -> list[ControlRequest]:
        """Pauses the job once all phases were seen."""
        return [ControlRequest(id="enough", kind="pause")] if "again" in self._seen_at else []

    def record(self, body: FactBody) -> None:
        super().record(body)
        match body:
            case StepTrained():
                self._steps.append(body.step)
                self._on_step()
            case ReplicasObserved():
                self._worked |= {each.replica for each in body.replicas if each.num_decoded > 0}
            case _:
                pass

    def _on_step(self) -> None:
        lost = [body for body in self.bodies if isinstance(body, FaultDetected)]
        if "late" not in self._seen_at:
            assert 1 not in self._worked, "replica 1 has no host yet"
            self._reach("late")
            self._late = self._cluster.add_node(num_cpus=CORES)
        elif "gone" not in self._seen_at:
            if 1 in self._worked:
                self._reach("gone")
                self._cluster.remove_node(self._late)
        elif "another" not in self._seen_at:
            if {"rollout/1", "relay/1"} <= {fault.component for fault in lost}:
                self._reach("another")
                self._cluster.add_node(num_cpus=CORES)
        elif 1 in self._worked:
            self._reach("again")

    def check(self, finished: RunFinished) -> None:
        assert finished.outcome == "paused", finished.message
        assert list(self._seen_at) == ["late", "gone", "another", "again"]
        assert self._steps == list(range(1, self._steps[-1] + 1)), "each step is trained once"
        assert finished.ledger["failed"] == 0 and finished.ledger["trained"] == self._steps[-1] * PROMPTS * GROUP
        lost = {body.component for body in self.bodies if isinstance(body, FaultDetected)}
        assert lost == {"rollout/1", "relay/1"}, "parts on the first host are not disturbed"

    def _reach(self, phase: str) -> None:
        self._seen_at[phase] = self._steps[-1]
        self._worked.clear()


def run_on_hosts_that_change(folder: Path) -> None:
    """Runs in a process of its own, with a Ray of its own."""
    os.environ |= {"PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0"}
    os.environ.pop("RAY_ADDRESS", None)
    import ray
    from ray.cluster_utils import Cluster
    from ray.util.placement_group import placement_group

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": CORES})
    try:
        ray.init(address=cluster.address)
        others = placement_group([{"CPU": round(CORES - FIRST_HOST_CPUS, 4)}])
        assert others.wait(WITHIN_S)
        sink = Changing(cluster)
        plan = AttemptPlan(spec=SPEC, checkpoints=folder / "checkpoints")
        sink.check(Attempt(plan, sink, sink.requests).run(lambda: None))
    finally:
        ray.shutdown()
        cluster.shutdown()  # type: ignore[no-untyped-call]


@pytest.mark.long
@pytest.mark.ray
def test_late_host_gets_a_replica_that_survives_its_loss(tmp_path: Path) -> None:
    process = multiprocessing.get_context("spawn").Process(target=run_on_hosts_that_change, args=(tmp_path,))
    process.start()
    process.join(WITHIN_S)
    if process.is_alive():
        process.kill()
    assert process.exitcode == 0
