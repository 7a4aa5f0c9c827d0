"""vLLM under the conformance tests of the rollout port, on the CPU and for real."""

from tests.engine.inference.rollout_engine_conformance import RolloutEngineConformance


class TestVllm(RolloutEngineConformance):
    """All of it: draws are ours and exact, the KV cache moves, log-probs are of the whole vocabulary."""
