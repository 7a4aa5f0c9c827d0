"""A replica that is vLLM runs as an actor of the same Ray, in an interpreter of its own."""

from pathlib import Path
from typing import Any

import pytest

from engine.inference.port import SequenceOutput, SequenceRequest
from engine.live.process.ray_session import in_interpreter
from engine.models.loading import DEMO_FOLDER
from tests.engine.inference.rollout_engine_builders import ask

pytestmark = [pytest.mark.ray, pytest.mark.vllm]
WITHIN_S = 300


def test_an_actor_in_vllms_interpreter_answers_on_the_demo_model(own_ray: str, vllm_python: Path) -> None:
    import ray

    class Replica:
        def __init__(self, folder: Path) -> None:
            from engine.inference.vllm.engine import VllmRolloutEngine

            self._engine = VllmRolloutEngine(folder, max_batch=8, device="cpu")

        def answer(self, requests: list[SequenceRequest]) -> list[SequenceOutput]:
            self._engine.submit(requests)
            outputs: list[SequenceOutput] = []
            while self._engine.view().num_running + self._engine.view().num_waiting:
                outputs += self._engine.step()
            return outputs

        def interpreter(self) -> str:
            import sys

            return sys.executable

    options = {"num_cpus": 0.1, "runtime_env": in_interpreter(vllm_python)}
    actor: Any = ray.remote(Replica).options(**options).remote(DEMO_FOLDER)
    try:
        requests = [ask(str(i), (20 + i, 30, 3), new=20, temperature=1.0, seed=i) for i in range(12)]
        outputs = ray.get(actor.answer.remote(requests), timeout=WITHIN_S)
        assert {each.sequence_id for each in outputs} == {each.sequence_id for each in requests}
        assert all(each.token_ids and each.reason in ("stop", "length") for each in outputs)
        assert ray.get(actor.interpreter.remote(), timeout=WITHIN_S) == str(vllm_python)
    finally:
        ray.kill(actor)
