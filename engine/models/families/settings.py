"""A family's configuration: the facts that a trainer needs, and the words from which transformers makes its layers.

Invariants:
- a setting that is not honoured is refused by name, never ignored: one that transformers' class does not know, a
  dropout (a policy's probabilities are to be its own), rotary tables that depend on how long the sequences of a call
  are (those of a packed row, or of a rank's slice of it, are not those of a rollout);
- nothing of transformers is imported before a configuration names a family.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import torch

from engine.models.families.attention import NAME, WINDOWS
from engine.models.loading import DTYPES
from engine.spec.fit.shape import ModelShape

FAMILIES: Final = ("llama", "qwen2", "qwen3", "mistral", "glm4", "olmo2", "phi3")
ROPE_TYPES: Final = ("default", "linear", "llama3", "yarn")
TURN_IN_PART: Final = ("glm4", "phi3")
DROPOUTS: Final = ("attention_dropout", "resid_pdrop", "embd_pdrop")

# Settings that say where a folder comes from, or that older files spell otherwise and transformers reads.
OF_NO_CONSEQUENCE: Final = frozenset(
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
    """As stored in the folder; what rollouts run in."""
    windows: tuple[int | None, ...]
    """Of each layer: as many tokens back as one sees, itself included."""
    words: str
    """The config.json."""

    @classmethod
    def read(cls, folder: Path) -> Self:
        return cls.of(json.loads((folder / "config.json").read_text()))

    @classmethod
    def of(cls, raw: dict[str, Any]) -> Self:
        if raw.get("model_type") not in FAMILIES:
            raise ValueError(
                f"config.json: model_type must be one of {', '.join(FAMILIES)}, got {raw.get('model_type')!r}"
            )
        shape, theirs = ModelShape.of_config(raw), _made(raw)
        _refuse_what_is_not_honoured(raw, theirs)
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
            windows=_windows(theirs, shape.num_layers),
            words=json.dumps(raw, sort_keys=True),
        )

    @property
    def attention_width(self) -> int:
        """Of all heads of all layers."""
        return self.num_layers * self.num_heads * self.head_dim

    @property
    def mixture(self) -> None:
        """Mixtures are the decoder's."""

    @property
    def shape(self) -> ModelShape:
        return ModelShape.of_config(json.loads(self.words))

    def for_transformers(self) -> Any:
        """Its layers will call the attention of engine/models/families/attention.py."""
        theirs = _made(json.loads(self.words))
        theirs._attn_implementation = NAME
        theirs.pad_token_id = None  # its row would get no gradient, though rows without padding have such tokens too
        setattr(theirs, WINDOWS, self.windows)
        return theirs


def _made(raw: dict[str, Any]) -> Any:
    from huggingface_hub.errors import StrictDataclassError
    from transformers import CONFIG_MAPPING

    try:
        return CONFIG_MAPPING[raw["model_type"]].from_dict(raw)
    except (TypeError, KeyError, StrictDataclassError) as error:
        raise ValueError(f"config.json: {error}") from error


def _refuse_what_is_not_honoured(raw: dict[str, Any], theirs: Any) -> None:
    known = set(type(theirs).__dataclass_fields__) | OF_NO_CONSEQUENCE
    for field in sorted(raw.keys() - known):
        if raw[field]:  # what is off, empty or nothing says nothing
            raise ValueError(f"config.json: {field} is no setting of {raw['model_type']} models, got {raw[field]!r}")
    for field in DROPOUTS:
        if raw.get(field):
            raise ValueError(f"config.json: {field} must be 0 for a model that is trained here, got {raw[field]!r}")
    rope = theirs.rope_parameters or {}
    if (kind := rope.get("rope_type", "default")) not in ROPE_TYPES:
        raise ValueError(f"config.json: rope type must be one of {', '.join(ROPE_TYPES)}, got {kind!r}")
    turned = rope.get("partial_rotary_factor") or 1.0
    if turned != 1.0 and raw["model_type"] not in TURN_IN_PART:
        raise ValueError(f"config.json: partial_rotary_factor must be 1 for {raw['model_type']} models, got {turned!r}")


def _windows(theirs: Any, num_layers: int) -> tuple[int | None, ...]:
    """As transformers' attention modules read them: of all layers, or of those that are called sliding."""
    window: int | None = getattr(theirs, "sliding_window", None)
    kinds = getattr(theirs, "layer_types", None) or ["sliding_attention" if window else "full_attention"] * num_layers
    if unknown := set(kinds) - {"sliding_attention", "full_attention"}:
        raise ValueError(f"config.json: layer_types must be full_attention or sliding_attention, got {min(unknown)!r}")
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)
