"""Models with sliding windows match transformers, in either kind of rows and with any prefill."""

from pathlib import Path
from typing import Literal

import pytest

from engine.inference.torch_engine import TorchRolloutEngine
from tests.engine.inference.rollout_engine_builders import Reference, ask, finish, make_family, perturbed
from tests.engine.models.families.tiny import WINDOW

pytestmark = pytest.mark.usefixtures("one_thread")

PROMPTS = [(5, 6), (8,), tuple(range(9, 50)), (4, 30, 31, 12), tuple(range(4, 8)) * 15]
VARIANTS = ("mistral-windows", "qwen2-windows", "qwen3-windows", "mistral")
_REFERENCES: dict[str, Reference] = {}


@pytest.fixture(params=VARIANTS)
def theirs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Reference:
    variant: str = request.param
    if variant not in _REFERENCES:
        _REFERENCES[variant] = make_family(tmp_path_factory.mktemp("model"), variant)
    return _REFERENCES[variant]


@pytest.mark.long_except(
    "mistral-windows-1000-window",
    "qwen2-windows-24-window",
    "qwen2-windows-1000-window",
    "qwen2-windows-1000-paged",
    "qwen3-windows-24-window",
    "mistral-1000-window",
)
@pytest.mark.parametrize("rows", ["window", "paged"])
@pytest.mark.parametrize("prefill_tokens", [WINDOW - 2, 24, 1_000])
def test_greedy_output_matches_transformers_across_a_swap(
    theirs: Reference, rows: Literal["window", "paged"], prefill_tokens: int
) -> None:
    engine = TorchRolloutEngine(theirs.folder, max_batch=4, device="cpu", layout=rows, prefill_tokens=prefill_tokens)
    for installed in (None, 1):
        if installed:
            weights, theirs = perturbed(theirs, version=installed)
            engine.install(weights)
        engine.submit([ask(str(i), prompt, new=30) for i, prompt in enumerate(PROMPTS)])
        outputs = finish(engine)
        for i, prompt in enumerate(PROMPTS):
            assert outputs[str(i)].token_ids == theirs.greedy(prompt, 30)


def test_window_changes_the_output(tmp_path: Path) -> None:
    """Otherwise the tests above would prove nothing."""
    windowed = make_family(tmp_path, "mistral-windows")
    config = (tmp_path / "config.json").read_text()
    (tmp_path / "config.json").write_text(config.replace(f'"sliding_window": {WINDOW}', '"sliding_window": null'))
    engine = TorchRolloutEngine(tmp_path, max_batch=1, device="cpu")
    engine.submit([ask("a", PROMPTS[2], new=30)])
    assert finish(engine)["a"].token_ids != windowed.greedy(PROMPTS[2], 30)
