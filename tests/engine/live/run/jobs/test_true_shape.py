"""A job on a model of real size: 28 layers, a vocabulary of 151,936, bfloat16, on two cores and 20 GB."""

import json
import os
import sys
from pathlib import Path

import pytest

from engine.fit.known_models import KNOWN_CONFIGS
from engine.models.make_random import make_random
from engine.spec.facts import CheckpointSaved, Fact, FaultDetected, RunFinished, StepTrained
from engine.training.checkpoint.folder import verify_checkpoint
from tests.engine.live.run.jobs.memory_of_processes import available_bytes, run_watched

MOST_BYTES = 20 * 10**9
SPEC = {
    "name": "true shape",
    "training": {"steps": 2, "prompts_per_step": 2, "checkpoint_every": 2},
    "algorithm": {"group_size": 2},
    "rollout": {"replicas": 1, "max_new_tokens": 16, "max_batch": 4, "weight_slots": 1, "kv_tokens": 1_024},
    "trainer": {"micro_batch_tokens": 256},
    "evaluation": {"every": 0},
}


@pytest.mark.soak
@pytest.mark.ray
def test_two_steps_of_a_model_of_true_shape_fit_a_small_machine(tmp_path: Path) -> None:
    make_random(tmp_path / "model", KNOWN_CONFIGS["Qwen3-0.6B"])
    kept_from_it = b"\1" * max(available_bytes() - MOST_BYTES, 0)  # makes a larger machine as small
    spec = tmp_path / "spec.json"
    spec.write_text(json.dumps({**SPEC, "model": {"source": str(tmp_path / "model")}}))
    out = tmp_path / "out"
    command = [sys.executable, "-m", "engine", "run", str(spec), "--out", str(out)]
    status, memory = run_watched(command, log=tmp_path / "log", environment=dict(os.environ))
    print("\n".join([*memory.lines, f"{'taken away beforehand':<32} {len(kept_from_it) / 1e9:6.2f} GB"]))
    assert status == 0, (tmp_path / "log").read_text()[-4_000:]
    facts = [Fact.model_validate_json(line).body for line in (out / "facts.jsonl").read_text().splitlines()]
    assert [body.step for body in facts if isinstance(body, StepTrained)] == [1, 2]
    assert [body.outcome for body in facts if isinstance(body, RunFinished)] == ["succeeded"]
    assert not [body for body in facts if isinstance(body, FaultDetected)]
    [saved] = [body for body in facts if isinstance(body, CheckpointSaved)]
    assert verify_checkpoint(out / "checkpoints" / f"step-{saved.step:06}") == saved.manifest_sha256
    assert memory.together < MOST_BYTES
