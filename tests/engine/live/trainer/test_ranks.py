"""A trainer of two processes on a real Ray computes the weights of one process, and a lost rank is an error."""

import json
import os
import random
import shutil
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import psutil
import pytest

from engine.live.run.attempt import Attempt, AttemptPlan
from engine.models.loading import DEMO_FOLDER
from engine.pipeline.effects import FetchWeights
from engine.policy.lineage import WeightsId
from engine.sinks.memory import MemorySink
from engine.spec.facts import StepTrained
from engine.spec.job import AlgorithmSpec, JobSpec, OptimizerSpec, TrainerSpec
from engine.training.checkpoint.folder import CheckpointUnverified, verify_checkpoint
from engine.training.port import TrainingTrajectory
from engine.training.settings import TrainerSettings

pytestmark = pytest.mark.ray

TIMEOUT_S = 60.0


BACKENDS: dict[str, dict[str, Any]] = {"torch": {}, "deepspeed": {"zero_stage": 3}}
# A rank group calls both backends alike. DeepSpeed's results are tested without Ray (tests/engine/training/zero), and
# once in a job below.
IN_TURN: Final = ["torch", pytest.param("deepspeed", marks=pytest.mark.soak)]


def make_trainer(backend: str, **place: Any) -> Any:
    from engine.training.factory import build_trainer

    settings = TrainerSettings(
        optimizer=OptimizerSpec(warmup_steps=0),
        algorithm=AlgorithmSpec(),
        trainer=TrainerSpec.model_validate({"backend": backend, "micro_batch_tokens": 128, **BACKENDS[backend]}),
        num_steps=100,
        temperature=1.0,
        max_new_tokens=40,
        seed=0,
    )
    return build_trainer(DEMO_FOLDER, settings, **place)


def trajectories_of(seed: int) -> list[TrainingTrajectory]:
    rng = random.Random(seed)
    responses = [tuple(rng.randrange(100) for _ in range(rng.randint(1, 30))) for _ in range(12)]
    return [
        TrainingTrajectory(
            group=index // 4,
            prompt_ids=(1, 2, 3),
            response_ids=response,
            behaviour_logprobs=(-30.0,) * len(response),  # very unlikely tokens for the demo model
            reward=float(rng.random() < 0.5),
        )
        for index, response in enumerate(responses)
    ]


class TrainerHost:
    """Rank 0's process, an actor too; its results can be pickled."""

    def __init__(self, make: Callable[..., Any], timeout_s: float) -> None:
        from engine.live.process.devices import claim_device
        from engine.live.process.links import Links
        from engine.live.trainer.publishing import PublishingTogether
        from engine.live.trainer.ranks import RankGroup
        from engine.live.weights.handover import Handover

        self._links = Links()
        handover = Handover(owner=self._links.run, listen="127.0.0.1", token=self._links.token)
        self._group = RankGroup(make, device=claim_device(), options=[{"num_cpus": 0.1}], timeout_s=timeout_s)
        self._publishing = PublishingTogether(self._group, handover, self._links)

    def train(self, batch: list[TrainingTrajectory]) -> dict[str, float]:
        return self._group.train_step(batch).metrics

    def weights(self) -> bytes:
        """The weights as the leading relay fetches them."""
        from engine.live.relay.assembly import Assembly
        from engine.live.relay.buffers import WeightBuffers
        from engine.live.relay.memory import RelayMemory

        manifest = self._publishing.publish(WeightsId(0, 1))
        fetch = FetchWeights(
            arrival=1, manifest=manifest, payload=self._publishing.payload(WeightsId(0, 1)), chunk_bytes=2**20
        )
        buffers = WeightBuffers(lambda hashed: None, lambda job: None)
        memory = RelayMemory(self._links.run)
        assembly = Assembly(owner=self._links.run, token=self._links.token, memory=memory, buffers=buffers)
        content, _ = assembly.fetched(fetch)
        return bytes(content.memory)

    def save(self, folder: Path) -> None:
        self.prepare(folder)
        self.write()

    def prepare(self, folder: Path) -> None:
        self._act = self._group.prepare_save(folder)

    def write(self) -> None:
        self._act()

    def load(self, folder: Path) -> None:
        self._group.load(folder)

    def close(self) -> None:
        self._group.close()


@pytest.fixture(params=IN_TURN)
def host(own_ray: str, request: pytest.FixtureRequest) -> Iterator[Any]:
    import ray

    remote: Any = ray.remote(TrainerHost)
    host = remote.options(num_cpus=0.1).remote(partial(make_trainer, request.param), TIMEOUT_S)
    yield host
    ray.kill(host)


@pytest.mark.proof
def test_two_ranks_train_and_resume_and_a_kill_is_a_clear_error(
    host: Any, processes_of: Callable[[str], list[psutil.Process]], tmp_path: Path
) -> None:
    import ray

    first = ray.get(host.train.remote(trajectories_of(0)))
    assert first["train/skipped"] == 0.0 and first["train/grad_norm"] > 0.0
    ray.get(host.save.remote(tmp_path))
    verify_checkpoint(tmp_path)
    assert len(list(tmp_path.glob("state-*"))) == 2
    second, weights = ray.get([host.train.remote(trajectories_of(1)), host.weights.remote()])
    ray.get(host.load.remote(tmp_path))
    again, weights_again = ray.get([host.train.remote(trajectories_of(1)), host.weights.remote()])
    assert (again, weights_again) == (second, weights)

    damaged = tmp_path / "damaged"
    shutil.copytree(tmp_path, damaged)
    file = damaged / "state-00002-of-00002.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(CheckpointUnverified, match=r"rank \d: .*damaged: state-00002-of-00002"):
        ray.get(host.load.remote(damaged))
    ray.get(host.load.remote(tmp_path))  # the same ranks load the previous checkpoint
    assert ray.get(host.train.remote(trajectories_of(1))) == second

    (rank,) = processes_of("TrainerRankActor")
    ray.get(host.prepare.remote(tmp_path / "later"))
    os.kill(rank.pid, signal.SIGKILL)
    with pytest.raises(Exception, match="rank 1: its process has died"):
        ray.get(host.write.remote(), timeout=TIMEOUT_S * 3)
    verify_checkpoint(tmp_path)
    with pytest.raises(Exception, match="rank 1: its process has died"):
        ray.get(host.train.remote(trajectories_of(2)), timeout=TIMEOUT_S * 3)
    ray.get(host.close.remote())
    assert not processes_of("TrainerRankActor")


def make_with_a_fault(backend: str, **place: Any) -> Any:
    import torch  # here, since Ray's processes import this module too

    trainer = make_trainer(backend, **place)

    def fail(*_: object) -> None:
        if torch.is_grad_enabled():  # the weights' probe passes
            raise MemoryError

    if place["world"].index == 1:
        trainer._model.layers[0].register_forward_pre_hook(fail)
    return trainer


@pytest.mark.long
@pytest.mark.usefixtures("own_ray")
@pytest.mark.parametrize("backend", IN_TURN)
def test_failed_rank_step_is_reported_at_once_with_its_place(backend: str) -> None:
    import ray

    remote: Any = ray.remote(TrainerHost)
    longest_s = 3_600.0  # longer than the test may last: the caller does not wait for a collective's timeout
    host = remote.options(num_cpus=0.1).remote(partial(make_with_a_fault, backend), longest_s)
    ray.get(host.weights.remote())
    with pytest.raises(Exception, match=r"rank 1: MemoryError: in a micro-batch of \d+ tokens.*; rank 0: "):
        ray.get(host.train.remote(trajectories_of(0)))
    ray.kill(host)


@pytest.mark.long
@pytest.mark.usefixtures("own_ray")
@pytest.mark.parametrize("backend", BACKENDS)
def test_adapter_critic_and_teacher_train_on_two_devices(
    processes_of: Callable[[str], list[psutil.Process]], tmp_path: Path, backend: str
) -> None:
    job = JobSpec.model_validate(
        {
            "name": "two devices",
            "training": {"steps": 2, "prompts_per_step": 4, "checkpoint_every": 2},
            "algorithm": {
                "name": "ppo",
                "group_size": 4,
                "kl": {"coefficient": 0.01},
                "teacher": {"source": "demo", "coefficient": 0.1},
            },
            "trainer": {"backend": backend, "lora_rank": 4, **BACKENDS[backend]},
            "resources": {"trainer_devices": 2},
            "rollout": {"replicas": 1, "max_batch": 16, "max_new_tokens": 40},
            "evaluation": {"prompts": 8},
        }
    )
    sink = MemorySink()
    finished = Attempt(AttemptPlan(spec=job, checkpoints=tmp_path), sink, list).run(lambda: None)
    assert finished.outcome == "succeeded", finished.message
    steps = [body.metrics for body in sink.bodies if isinstance(body, StepTrained)]
    assert len(steps) == 2 and all(step["train/skipped"] == 0.0 for step in steps)
    from backend.pages.job.panels.charts import OF_A_TEACHER  # here, since Ray's processes import this module too

    expected = {"train/kl", *OF_A_TEACHER.keys, "train/value_loss", "train/critic_grad_norm"}
    assert all(expected <= step.keys() for step in steps)
    (saved,) = tmp_path.glob("step-000002")
    verify_checkpoint(saved)
    assert json.loads((saved / "trainer.json").read_text()).items() >= {"has_critic": True, "lora_rank": 4}.items()
    psutil.wait_procs(processes_of("TrainerRankActor"), timeout=TIMEOUT_S)  # the rank ends shortly after its owner
    assert not processes_of("TrainerRankActor")


@pytest.mark.soak
def test_frozen_rank_times_out_and_is_killed(host: Any, processes_of: Callable[[str], list[psutil.Process]]) -> None:
    import ray

    ray.get(host.train.remote(trajectories_of(0)))
    (rank,) = processes_of("TrainerRankActor")
    os.kill(rank.pid, signal.SIGSTOP)
    with pytest.raises(Exception, match="rank 1: no answer"):
        ray.get(host.train.remote(trajectories_of(1)), timeout=TIMEOUT_S * 3)
    psutil.wait_procs([rank], timeout=TIMEOUT_S)
    assert not processes_of("TrainerRankActor")
