"""Windows are read from config.json as transformers' classes read them."""

from typing import Any

import pytest

from engine.models.families.settings import FamilyConfig
from engine.models.windows import read_windows
from tests.engine.models.families.tiny import configuration

SOME = ["sliding_attention", "full_attention"]


def raw(family: str, **changed: Any) -> dict[str, Any]:
    config: dict[str, Any] = configuration(family).to_dict()
    config.pop("layer_types", None)
    return {name: value for name, value in (config | changed).items() if value != "absent"}


@pytest.mark.parametrize(
    ("family", "changed", "expected"),
    [
        ("mistral", {"sliding_window": 7}, (7, 7)),
        ("mistral", {"sliding_window": None}, ()),
        ("mistral", {"sliding_window": "absent"}, (4_096, 4_096)),
        ("qwen2", {"use_sliding_window": False, "sliding_window": 7}, ()),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1}, (None, 7)),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 0}, (7, 7)),
        ("qwen3", {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 28}, ()),
        ("qwen3", {"use_sliding_window": True, "sliding_window": 7, "layer_types": SOME}, (7, None)),
        ("qwen3", {"use_sliding_window": True, "sliding_window": None, "max_window_layers": 0}, ()),
        ("llama", {}, ()),
    ],
)
def test_windows_are_those_of_transformers(
    family: str, changed: dict[str, Any], expected: tuple[int | None, ...]
) -> None:
    config = raw(family, **changed)
    assert read_windows(config) == expected
    assert (expected or (None, None)) == FamilyConfig.of(config).windows


@pytest.mark.parametrize(
    ("family", "changed", "message"),
    [
        ("llama", {"use_sliding_window": True}, "use_sliding_window must be False for llama models"),
        (
            "qwen2",
            {"layer_types": SOME},
            "must be full_attention for this decoder, got 'sliding_attention'",
        ),
        ("qwen2", {"use_sliding_window": True, "layer_types": ["linear"] * 2}, "got 'linear'"),
        ("mistral", {"sliding_window": 0}, "sliding_window must be 1 or more, got 0"),
        ("mistral", {"sliding_window": True}, "sliding_window must be 1 or more, got True"),
    ],
)
def test_what_is_no_window_is_refused(family: str, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_windows({"model_type": family, "num_hidden_layers": 2} | changed)
