"""Families that only vLLM rolls out: it matches transformers with the folder's weights, and with a trainer's weights
under the names of the files, every tensor of which is compared."""

import pytest

from engine.inference.vllm.start import read_shapes
from tests.engine.inference.rollout_engine_builders import answer, ask, make_family, perturbed
from tests.vllm.conftest import MakeVllm
from tests.vllm.held import compared, recorded

PROMPT = tuple(5 + i % 40 for i in range(20))


@pytest.mark.parametrize("variant", ["llama-biases", "qwen3-yarn", "mistral-windows", "glm4", "olmo2", "phi3-windows"])
def test_matches_transformers_before_and_after_a_hand_over(
    make_engine: MakeVllm, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, variant: str
) -> None:
    base = make_family(tmp_path_factory.mktemp(variant), variant)
    weights, changed = perturbed(base, version=1)
    # vLLM runs OLMo2 by transformers' own class, which it then wraps for the whole process.
    for reference in (base, changed):
        reference.model.base_model.do_not_compile = True
    engine = make_engine(base.folder)
    held = recorded(engine, monkeypatch)
    for reference in (base, changed):
        output = answer(engine, ask("a", PROMPT, temperature=1.0, seed=1))
        expected = reference.logprobs(PROMPT, output.token_ids, 1.0)
        assert output.logprobs == pytest.approx(expected, abs=1e-3)
        engine.install(weights)
        assert compared(held) == set(read_shapes(base.folder))
