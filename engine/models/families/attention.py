"""The attention that transformers' layers call: `Attend`, under a name in transformers' own table.

    layer(x, …, attend=attend) ──▶ self_attn(…, attend=attend) ──▶ attend_as_asked(module, q, k, v, …, attend=attend)

What the layers do not know they hand on, so `attend` travels with each call, and nothing is global but the name.

Invariant: every keyword that a family hands to its attention is honoured, known to mean nothing here, or refused.
"""

from typing import Any, Final

from torch import Tensor, nn

from engine.models.decoder import Attend

NAME: Final = "laminar"
WINDOWS: Final = "laminar_windows"
"""Of a transformers configuration: each layer's window, as `Attend` knows them."""

# What a layer hands on although attention has no use for it: positions are in the queries and keys already.
WITHOUT_MEANING_HERE: Final = frozenset({"position_ids", "position_embeddings", "use_cache", "cache_position"})


def register() -> None:
    from transformers import AttentionInterface  # seconds to import, and only these models need it

    AttentionInterface.register(NAME, attend_as_asked)


def attend_as_asked(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    attend: Attend,
    scaling: float | None = None,
    sliding_window: int | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Tensors come as 1, heads, T, E; the mix of values goes as 1, T, heads, E."""
    layer: Any = module
    _refuse("attention_mask", attention_mask, None)
    _refuse("dropout", dropout, 0.0)
    _refuse("is_causal", is_causal, None, True)
    _refuse("sliding_window", sliding_window, getattr(layer.config, WINDOWS)[layer.layer_idx])
    for keyword in others.keys() - WITHOUT_MEANING_HERE:
        _refuse(keyword, others[keyword], None)
    q_THE, k_TKE, v_TKE = (part[0].transpose(0, 1) for part in (query, key, value))
    usual = q_THE.shape[-1] ** -0.5  # what `Attend` scales by
    if scaling is not None and scaling != usual:
        q_THE = q_THE * (scaling / usual)
    mixed_TA = attend(layer.layer_idx, q_THE, k_TKE, v_TKE)
    return mixed_TA.view(1, *q_THE.shape), None


def _refuse(keyword: str, value: object, *accepted: object) -> None:
    """A comparison by identity first: a tensor has no truth."""
    if any(value is each for each in accepted) or (not isinstance(value, Tensor) and value in accepted):
        return
    choices = " or ".join(map(repr, accepted))
    raise ValueError(f"attention: {keyword} must be {choices} for a model that is trained here, got {value!r}")
