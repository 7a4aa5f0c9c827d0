"""Actors import few packages: imports slow every job's start and stay in memory while the job runs."""

import subprocess
import sys
from collections.abc import Collection

import pytest

TOO_HEAVY = {
    "torch._dynamo", "torch._inductor", "transformers", "sympy", "pandas", "scipy", "math_verify", "reasoning_gym",
    "deepspeed", "peft", "pyarrow", "boto3", "uvicorn", "httpx",
}  # fmt: skip
NO_TENSORS = {"torch", "safetensors", "tokenizers"}


def loaded_by(code: str, among: Collection[str]) -> set[str]:
    script = f"{code}\nimport sys; print(*sorted(set(sys.modules) & {set(among)!r}))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


TRAINS = """
from engine.live.trainer.actor import TrainerActor
from engine.live.trainer.body import TrainerBody
from engine.models.loading import DEMO_FOLDER
from engine.spec.job import JobSpec
from engine.training.port import TrainingTrajectory
from engine.training.settings import TrainerSettings
from engine.training.factory import build_trainer
trainer = build_trainer(DEMO_FOLDER, TrainerSettings.of(JobSpec(name="light")), device="cpu")
done = trainer.train_step([
    TrainingTrajectory(
        group=0, prompt_ids=(1, 2), response_ids=(3, 4), behaviour_logprobs=(-4.0, -4.0), reward=float(which)
    )
    for which in range(4)
])
assert done.metrics["train/skipped"] == 0.0
"""

SAMPLES = """
from engine.inference.port import SamplingParams, SequenceRequest
from engine.inference.torch_engine import TorchRolloutEngine
from engine.live.rollout.weight_slots import WeightSlots
from engine.live.rollout.actor import RolloutActor
from engine.live.rollout.body import RolloutBody
from engine.models.loading import DEMO_FOLDER
engine = TorchRolloutEngine(DEMO_FOLDER, max_batch=2, device="cpu", kv_tokens=256)
engine.submit([
    SequenceRequest(
        sequence_id="a", prompt_ids=(1, 2), sampling=SamplingParams(max_new_tokens=2, temperature=1.0, seed=1)
    )
])
while engine.view().num_running + engine.view().num_waiting:
    engine.step()
"""


@pytest.mark.long
@pytest.mark.parametrize("code", [TRAINS, SAMPLES], ids=["trainer", "replica"])
def test_actor_that_uses_tensors_loads_only_torch(code: str) -> None:
    assert loaded_by(code, TOO_HEAVY | {"torch"}) == {"torch"}


@pytest.mark.long_except("environment")
@pytest.mark.parametrize(
    "code",
    [
        "import engine.live.data.actor",
        "import engine.live.relay.actor",
        "import engine.live.environment.actor, engine.environments.registry, engine.environments.running_sums",
    ],
    ids=["data", "relay", "environment"],
)
def test_actor_without_tensors_loads_no_torch(code: str) -> None:
    assert not loaded_by(code, TOO_HEAVY | NO_TENSORS)
