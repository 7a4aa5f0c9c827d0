"""A family's configuration: the facts that a trainer needs, and the config.json from which transformers makes layers.

Invariants:
- an unsupported setting is refused by name, never ignored: settings that transformers' class does not know; dropout,
  since the trainer's probabilities must be the policy's; rotary tables that depend on the length of a call's sequences,
  since a packed row, or a rank's slice of it, has other lengths than a rollout;
- transformers is not imported before a configuration names a family.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import torch

from engine.fit.shape import ModelShape
from engine.models.families.attention import NAME, WINDOWS
from engine.models.loading import DTYPES

FAMILIES: Final = ("llama", "qwen2", "qwen3", "mistral", "glm4", "olmo2", "phi3")
ROPE_TYPES: Final = ("default", "linear", "llama3", "yarn")
PARTIAL_ROTARY: Final = ("glm4", "phi3")
DROPOUTS: Final = ("attention_dropout", "resid_pdrop", "embd_pdrop")

# Settings about a folder's origin, or older spellings of settings that transformers reads.
IGNORED_SETTINGS: Final = frozenset(
    (
        *("model_type", "_name_or_path", "auto_map", "tokenizer_class", "_attn_implementation"),
        *("torch_dtype", "rope_theta", "rope_scaling", "partial_rotary_factor", "head_dim"),
        *("unsloth_fixed", "unsloth_version"),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyConfig:
    vocab_size: int
    width: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_positions: int
    tied: bool
    dtype: torch.dtype
    """As stored in the folder; rollouts run in this dtype."""
    windows: tuple[int | None, ...]
    """Each layer's attention window in tokens, the current one included; None: no window."""
    source: str
    """The content of config.json."""

    @classmethod
    def read(cls, folder: Path) -> Self:
        return cls.of(json.loads((folder / "config.json").read_text()))

    @classmethod
    def of(cls, raw: dict[str, Any]) -> Self:
        if raw.get("model_type") not in FAMILIES:
            raise ValueError(
                f"config.json: model_type must be one of {', '.join(FAMILIES)}, got {raw.get('model_type')!r}"
            )
        shape, theirs = ModelShape.of_config(raw), _make_config(raw)
        _refuse_unsupported_settings(raw, theirs)
        return cls(
            vocab_size=shape.vocab_size,
            width=shape.width,
            num_layers=shape.num_layers,
            num_heads=shape.num_heads,
            num_kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            max_positions=shape.max_positions,
            tied=shape.tied,
            dtype=DTYPES[raw.get("dtype") or raw.get("torch_dtype") or "float32"],
            windows=_read_windows(theirs, shape.num_layers),
            source=json.dumps(raw, sort_keys=True),
        )

    @property
    def attention_width(self) -> int:
        """The summed width of all heads of all layers."""
        return self.num_layers * self.num_heads * self.head_dim

    @property
    def mixture(self) -> None:
        """None: only the decoder has mixtures."""

    @property
    def shape(self) -> ModelShape:
        return ModelShape.of_config(json.loads(self.source))

    def for_transformers(self) -> Any:
        """A configuration whose layers call the attention of engine/models/families/attention.py."""
        theirs = _make_config(json.loads(self.source))
        theirs._attn_implementation = NAME
        theirs.pad_token_id = None  # else its row would get no gradient, and the token also occurs as no padding
        setattr(theirs, WINDOWS, self.windows)
        return theirs


def _make_config(raw: dict[str, Any]) -> Any:
    from huggingface_hub.errors import StrictDataclassError
    from transformers import CONFIG_MAPPING

    try:
        return CONFIG_MAPPING[raw["model_type"]].from_dict(raw)
    except (TypeError, KeyError, StrictDataclassError) as error:
        raise ValueError(f"config.json: {error}") from error


def _refuse_unsupported_settings(raw: dict[str, Any], theirs: Any) -> None:
    known = set(type(theirs).__dataclass_fields__) | IGNORED_SETTINGS
    for field in sorted(raw.keys() - known):
        if raw[field]:  # an unknown setting that is off or empty has no effect
            raise ValueError(f"config.json: {field} is no setting of {raw['model_type']} models, got {raw[field]!r}")
    for field in DROPOUTS:
        if raw.get(field):
            raise ValueError(f"config.json: {field} must be 0 for a model that is trained here, got {raw[field]!r}")
    rope = theirs.rope_parameters or {}
    if (kind := rope.get("rope_type", "default")) not in ROPE_TYPES:
        raise ValueError(f"config.json: rope type must be one of {', '.join(ROPE_TYPES)}, got {kind!r}")
    factor = rope.get("partial_rotary_factor") or 1.0
    if factor != 1.0 and raw["model_type"] not in PARTIAL_ROTARY:
        raise ValueError(f"config.json: partial_rotary_factor must be 1 for {raw['model_type']} models, got {factor!r}")


def _read_windows(theirs: Any, num_layers: int) -> tuple[int | None, ...]:
    """Each layer's window as transformers reads it: in all layers, or in those listed as sliding."""
    window: int | None = getattr(theirs, "sliding_window", None)
    kinds = getattr(theirs, "layer_types", None) or ["sliding_attention" if window else "full_attention"] * num_layers
    if unknown := set(kinds) - {"sliding_attention", "full_attention"}:
        raise ValueError(f"config.json: layer_types must be full_attention or sliding_attention, got {min(unknown)!r}")
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)
