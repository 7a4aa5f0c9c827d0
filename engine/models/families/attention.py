"""The attention function of transformers' layers: `Attend`, registered in transformers' table of attentions.

    layer(x, …, attend=attend) ──▶ self_attn(…, attend=attend) ──▶ attend_packed(module, q, k, v, …, attend=attend)

Layers pass on keywords that they do not know, so `attend` travels with each call and only the name is global.

Invariant: every keyword that a family passes to its attention is honoured, known to have no effect, or refused.
"""

from typing import Any, Final

from torch import Tensor, nn

from engine.models.decoder import Attend

NAME: Final = "laminar"
WINDOWS: Final = "laminar_windows"
"""The attribute of a transformers configuration that holds each layer's window, as `Attend` takes them."""

# Keywords that layers pass although attention does not need them: queries and keys already contain the positions.
IGNORED_KEYWORDS: Final = frozenset({"position_ids", "position_embeddings", "use_cache", "cache_position"})


def register() -> None:
    from transformers import AttentionInterface  # seconds to import, and only these models need it

    AttentionInterface.register(NAME, attend_packed)


def attend_packed(
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
    """Takes tensors of shape 1, heads, T, E and returns the mixed values as 1, T, heads, E."""
    layer: Any = module
    _refuse_unless("attention_mask", attention_mask, None)
    _refuse_unless("dropout", dropout, 0.0)
    _refuse_unless("is_causal", is_causal, None, True)
    _refuse_unless("sliding_window", sliding_window, getattr(layer.config, WINDOWS)[layer.layer_idx])
    for keyword in others.keys() - IGNORED_KEYWORDS:
        _refuse_unless(keyword, others[keyword], None)
    q_THE, k_TKE, v_TKE = (part[0].transpose(0, 1) for part in (query, key, value))
    usual = q_THE.shape[-1] ** -0.5  # the scale of `Attend`
    if scaling is not None and scaling != usual:
        q_THE = q_THE * (scaling / usual)
    mixed_TA = attend(layer.layer_idx, q_THE, k_TKE, v_TKE)
    return mixed_TA.view(1, *q_THE.shape), None


def _refuse_unless(keyword: str, value: object, *accepted: object) -> None:
    """Compares by identity first, since the comparison of tensors has no truth value."""
    if any(value is each for each in accepted) or (not isinstance(value, Tensor) and value in accepted):
        return
    choices = " or ".join(map(repr, accepted))
    raise ValueError(f"attention: {keyword} must be {choices} for a model that is trained here, got {value!r}")
