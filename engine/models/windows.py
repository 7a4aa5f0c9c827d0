"""Reads the sliding windows of a config.json as transformers' class of its family does.

Invariant: a layer type other than full or sliding attention is refused, and so is a window in a family without windows.
"""

from collections.abc import Mapping
from typing import Any, Final

OF_ALL_LAYERS: Final = ("mistral",)
"""Families whose window applies to every layer."""
OF_SOME_LAYERS: Final = ("qwen2", "qwen3")
"""Families whose window, if switched on, applies to the layers listed as sliding, or to all from max_window_layers."""
WINDOW: Final = 4_096  # the default
FIRST_SLIDING: Final = 28


def read_windows(raw: Mapping[str, Any]) -> tuple[int | None, ...]:
    """Each layer's window; empty if no layer has one. Raises `ValueError`."""
    family, num_layers = raw["model_type"], raw["num_hidden_layers"]
    kinds = raw.get("layer_types")
    is_on = family in OF_ALL_LAYERS or bool(raw.get("use_sliding_window", False))
    if family in OF_ALL_LAYERS:
        kinds = ["sliding_attention"] * num_layers
    elif is_on and family not in OF_SOME_LAYERS:
        raise ValueError(f"config.json: use_sliding_window must be False for {family} models of this decoder, got True")
    elif is_on and kinds is None:
        first = raw.get("max_window_layers", FIRST_SLIDING)
        kinds = ["full_attention" if layer < first else "sliding_attention" for layer in range(num_layers)]
    accepted = ("full_attention", "sliding_attention") if is_on else ("full_attention",)
    for kind in kinds or ():
        if kind not in accepted:
            raise ValueError(f"config.json: layer_types must be {' or '.join(accepted)} for this decoder, got {kind!r}")
    window = raw.get("sliding_window", WINDOW)
    if not is_on or window is None or "sliding_attention" not in (kinds or ()):
        return ()
    if isinstance(window, bool) or not isinstance(window, int) or window < 1:
        raise ValueError(f"config.json: sliding_window must be 1 or more, got {window!r}")
    return tuple(window if kind == "sliding_attention" else None for kind in kinds or ())
