"""The real vLLM on a CPU under the conformance tests of the rollout port."""

from tests.engine.inference.rollout_engine_conformance import RolloutEngineConformance


class TestVllm(RolloutEngineConformance):
    """The whole suite: draws are ours and exact, the KV cache moves, log-probs cover the whole vocabulary."""
