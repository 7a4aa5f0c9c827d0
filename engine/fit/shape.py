"""A model's shape: what of its config.json decides how much memory and arithmetic it takes.

    D width    H query heads    K key/value heads    E width of a head    A = H·E    Q = (H + 2K)·E
    F width of the MLP    X experts, k of them for a token, M width of one    V vocabulary    N layers

Invariants:
- weights are counted to the last norm: tests/engine/fit compares with the decoder, and with transformers' mixture;
- what is counted by other rules (shared experts) is refused, never estimated as if it were one of these.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

STORED_BYTES: Final = {"float32": 4, "bfloat16": 2, "float16": 2}
COUNTED: Final = ("llama", "qwen2", "qwen3", "qwen3_moe", "mistral", "glm4", "olmo2", "phi3")
WITHOUT_OUTPUT_BIAS: Final = ("glm4",)
UNCOUNTED: Final = ("shared_expert_intermediate_size", "n_shared_experts", "num_shared_experts")
"""Fields of mixtures with shared experts in addition to the routed ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    vocab_size: int
    width: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    mlp_width: int
    tied: bool
    stored_bytes: int
    """Of a weight in the folder, and in a rollout."""
    max_positions: int
    family: str = field(default="", compare=False)
    """By its config.json."""
    qkv_bias: bool = False
    qk_norm: bool = False
    """Of each head."""
    wide_qk_norm: bool = False
    """Of all heads together."""
    output_bias: bool = False
    mlp_bias: bool = False
    num_norms: int = 2
    """Of a layer, as wide as it."""
    num_experts: int = 0
    experts_per_token: int = 0
    expert_width: int = 0
    num_mixtures: int = 0
    """Layers whose MLP is a mixture of experts; the others are dense."""

    @classmethod
    def of_config(cls, raw: Mapping[str, Any]) -> Self:
        """From a Hugging Face config.json. Raises `ValueError`."""
        for other in UNCOUNTED:
            if raw.get(other):
                raise ValueError(f"config.json: {other} must be 0 to be counted here, got {raw[other]!r}")
        dtype = raw.get("dtype") or raw.get("torch_dtype") or "float32"
        if dtype not in STORED_BYTES:
            raise ValueError(f"config.json: dtype must be one of {', '.join(STORED_BYTES)}, got {dtype!r}")
        model_type, num_heads = _family(raw), _count(raw, "num_attention_heads")
        width, num_layers = _count(raw, "hidden_size"), _count(raw, "num_hidden_layers")
        num_experts = int(raw.get("num_experts") or raw.get("num_local_experts") or 0)
        return cls(
            vocab_size=_count(raw, "vocab_size"),
            width=width,
            num_layers=num_layers,
            num_heads=num_heads,
            num_kv_heads=int(raw.get("num_key_value_heads") or num_heads),
            head_dim=int(raw.get("head_dim") or (128 if model_type == "qwen3" else width // num_heads)),
            mlp_width=_count(raw, "intermediate_size"),
            tied=bool(raw.get("tie_word_embeddings", False)),
            stored_bytes=STORED_BYTES[dtype],
            max_positions=int(raw.get("max_position_embeddings", 2048)),
            family=model_type,
            qkv_bias=model_type == "qwen2" or bool(raw.get("attention_bias", model_type == "glm4")),
            qk_norm=model_type.startswith("qwen3"),
            wide_qk_norm=model_type == "olmo2",
            output_bias=bool(raw.get("attention_bias")) and model_type not in WITHOUT_OUTPUT_BIAS,
            mlp_bias=bool(raw.get("mlp_bias")),
            num_norms=4 if model_type == "glm4" else 2,
            num_experts=num_experts,
            experts_per_token=_count(raw, "num_experts_per_tok") if num_experts else 0,
            expert_width=_count(raw, "moe_intermediate_size") if num_experts else 0,
            num_mixtures=_num_mixtures(raw, num_layers) if num_experts else 0,
        )

    # Widths ------------------------------------------------------------------------------------------------------

    @property
    def attention_width(self) -> int:
        """A"""
        return self.num_heads * self.head_dim

    @property
    def key_width(self) -> int:
        """K·E"""
        return self.num_kv_heads * self.head_dim

    @property
    def projected_width(self) -> int:
        """Q"""
        return self.attention_width + 2 * self.key_width

    def can_deal_heads(self, num_sharers: int) -> bool:
        """To devices that share a sequence: as many to each, or each head of keys to as many of them."""
        keys = self.num_kv_heads
        return self.num_heads % num_sharers == 0 and (keys % num_sharers == 0 or num_sharers % keys == 0)

    # Weights -----------------------------------------------------------------------------------------------------

    @property
    def num_dense(self) -> int:
        return self.num_layers - self.num_mixtures

    @property
    def table_weights(self) -> int:
        """V·D, twice unless embedding and head are one."""
        return self.vocab_size * self.width * (1 if self.tied else 2)

    @property
    def attention_weights(self) -> int:
        """(Q + A)·D, the layer's norms, and norms and biases where the family has them."""
        matrices = (self.projected_width + self.attention_width) * self.width
        norms = self.num_norms * self.width + (2 * self.head_dim if self.qk_norm else 0)
        norms += self.attention_width + self.key_width if self.wide_qk_norm else 0
        biases = (self.projected_width if self.qkv_bias else 0) + (self.width if self.output_bias else 0)
        return matrices + norms + biases

    def mlp_weights(self, *, mixture: bool, active: bool = False) -> int:
        """3·F·D, 2·F + D of biases; of a mixture 3·M·D for each expert (`active`: that a token meets), and X·D."""
        if not mixture:
            return 3 * self.mlp_width * self.width + (2 * self.mlp_width + self.width if self.mlp_bias else 0)
        num_experts = self.experts_per_token if active else self.num_experts
        return (3 * self.expert_width * num_experts + self.num_experts) * self.width

    def layer_weights(self, *, mixture: bool, active: bool = False) -> int:
        return self.attention_weights + self.mlp_weights(mixture=mixture, active=active)

    @property
    def kinds(self) -> tuple[tuple[bool, int], ...]:
        """(is it a mixture, how many layers of the kind), none of them empty."""
        return tuple((kind, count) for kind, count in ((False, self.num_dense), (True, self.num_mixtures)) if count)

    @property
    def largest_layer(self) -> int:
        return max(self.layer_weights(mixture=mixture) for mixture, _ in self.kinds)

    @property
    def largest_matrix(self) -> int:
        """Of a layer: gate and up are one; of a mixture, all experts' gates and ups."""
        dense = 2 * self.mlp_width * self.width if self.num_dense else 0
        mixed = 2 * self.expert_width * self.num_experts * self.width if self.num_mixtures else 0
        return max(dense, mixed, self.projected_width * self.width)

    @property
    def num_weights(self) -> int:
        layers = sum(count * self.layer_weights(mixture=mixture) for mixture, count in self.kinds)
        return layers + self.table_weights + self.width

    @property
    def num_active_weights(self) -> int:
        """Those that a token is multiplied with: of a mixture its experts; of the tables the head."""
        layers = sum(count * self.layer_weights(mixture=mixture, active=True) for mixture, count in self.kinds)
        return layers + self.vocab_size * self.width + self.width

    def adapter_weights(self, rank: int) -> int:
        """rank·(rows + columns) of each of the seven matrices of a dense layer; of a mixture, of attention's four."""
        width, attention, key = self.width, self.attention_width, self.key_width
        of_attention = 2 * (width + attention) + 2 * (width + key)
        of_mlp = 3 * (width + self.mlp_width)
        return rank * (self.num_layers * of_attention + self.num_dense * of_mlp)


def _family(raw: Mapping[str, Any]) -> str:
    model_type = str(raw.get("model_type", ""))
    if model_type not in COUNTED:
        raise ValueError(f"config.json: model_type must be one of {', '.join(COUNTED)}, got {model_type!r}")
    return model_type


def _count(raw: Mapping[str, Any], field: str) -> int:
    value = raw.get(field)
    if not isinstance(value, int) or value < 1:
        raise ValueError(f"config.json: {field} must be a positive number, got {value!r}")
    return value


def _num_mixtures(raw: Mapping[str, Any], num_layers: int) -> int:
    """Every `decoder_sparse_step`-th layer, but for those that are named."""
    step, dense = int(raw.get("decoder_sparse_step") or 1), set(raw.get("mlp_only_layers") or ())
    return sum((index + 1) % step == 0 and index not in dense for index in range(num_layers))
