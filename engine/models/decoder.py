"""A decoder in plain torch: RMSNorm, rotary positions, grouped-query attention, SwiGLU. Llama, with Qwen2's biases,
Qwen3's query and key norms and its mixtures of experts where the configuration has them.

One forward pass serves training, prefill and decode: it sees a flat row of tokens. The caller decides how tokens attend
to one another (`Attend`: rectangles of whole sequences, or one new token per sequence against a KV cache) and which
experts a token is routed to (`Choose`).

    T tokens of all sequences, one after the other    D width    H query heads    K key/value heads
    E width of a head    A = H·E    Q = (H + 2K)·E    F width of the MLP    V vocabulary    P positions

Invariants:
- query, key and value projections are one matrix, gate and up another: half the kernel launches. The Hugging Face
  tensors are row slices of these matrices (engine/models/loading.py);
- tied weights are one parameter.
"""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from engine.models.mixture import Choose, Mixture, MixtureShape, freely
from engine.models.operations import add_linear, empty_parameter, gated, rms_norm
from engine.models.rotary import RopeStretch, rotary_tables, rotate
from engine.process.progress import report_layer_progress

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer, q_THE, k_TKE, v_TKE) → mixed_TA"""

Activations = Literal["kept", "recomputed", "offloaded"]
"""What a layer saves for the backward pass: all that this needs; only its input, with the rest recomputed; or only its
input, moved to host memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig:
    vocab_size: int
    width: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    mlp_width: int
    max_positions: int
    rope_theta: float
    norm_eps: float
    tied: bool
    dtype: torch.dtype
    """As stored in the folder; rollouts run in this dtype."""
    qkv_bias: bool = False
    qk_norm: bool = False
    rope_stretch: RopeStretch | None = None
    mixture: MixtureShape | None = None
    sliding: tuple[int | None, ...] = ()
    """Each layer's attention window in tokens, the current one included; None: no window. Empty: none in any layer."""

    @property
    def attention_width(self) -> int:
        """The summed width of all heads of all layers."""
        return self.num_layers * self.num_heads * self.head_dim

    @property
    def windows(self) -> tuple[int | None, ...]:
        """Each layer's attention window."""
        return self.sliding or (None,) * self.num_layers


class DecoderLayer(nn.Module):
    activations: Activations = "kept"

    def __init__(self, config: DecoderConfig, index: int, dtype: torch.dtype) -> None:
        super().__init__()
        self._config = config
        self._index = index
        attention_width = config.num_heads * config.head_dim
        projected_width = attention_width + 2 * config.num_kv_heads * config.head_dim
        self.attention_norm_D = empty_parameter(config.width, dtype=dtype)
        self.qkv_QD = empty_parameter(projected_width, config.width, dtype=dtype)
        self.qkv_bias_Q = empty_parameter(projected_width, dtype=dtype) if config.qkv_bias else None
        self.query_norm_E = empty_parameter(config.head_dim, dtype=dtype) if config.qk_norm else None
        self.key_norm_E = empty_parameter(config.head_dim, dtype=dtype) if config.qk_norm else None
        self.output_DA = empty_parameter(config.width, attention_width, dtype=dtype)
        self.mlp_norm_D = empty_parameter(config.width, dtype=dtype)
        self.mixture = _make_mixture(config, index, dtype)
        if self.mixture is None:
            self.gate_up_2FD = empty_parameter(2 * config.mlp_width, config.width, dtype=dtype)
            self.down_DF = empty_parameter(config.width, config.mlp_width, dtype=dtype)

    def forward(
        self, x_TD: Tensor, cos_T1E: Tensor, sin_T1E: Tensor, attend: Attend, choose: Choose = freely
    ) -> Tensor:
        config = self._config
        normed_TD = rms_norm(x_TD, self.attention_norm_D, config.norm_eps)
        qkv_THE = functional.linear(normed_TD, self.qkv_QD, self.qkv_bias_Q).view(x_TD.shape[0], -1, config.head_dim)
        # split, not slices: its backward pass is one concatenation, not a zero-filled gradient for each part.
        qk_THE, v_TKE = torch.split(qkv_THE, [config.num_heads + config.num_kv_heads, config.num_kv_heads], dim=1)
        turned_THE = rotate(self._norm_heads(qk_THE), cos_T1E, sin_T1E)
        q_THE, k_TKE = torch.split(turned_THE, [config.num_heads, config.num_kv_heads], dim=1)
        mixed_TA = attend(self._index, q_THE, k_TKE, v_TKE)
        x_TD = add_linear(x_TD, mixed_TA, self.output_DA)
        normed_TD = rms_norm(x_TD, self.mlp_norm_D, config.norm_eps)
        if self.mixture is not None:
            mixed_TD: Tensor = self.mixture(normed_TD, choose)
            return x_TD + mixed_TD
        gate_TF, up_TF = functional.linear(normed_TD, self.gate_up_2FD).chunk(2, dim=-1)
        return add_linear(x_TD, gated(gate_TF, up_TF), self.down_DF)

    def _norm_heads(self, qk_THE: Tensor) -> Tensor:
        if self.query_norm_E is None or self.key_norm_E is None:
            return qk_THE
        queries, keys, eps = self._config.num_heads, self._config.num_kv_heads, self._config.norm_eps
        q_THE, k_TKE = torch.split(qk_THE, [queries, keys], dim=1)
        return torch.cat((rms_norm(q_THE, self.query_norm_E, eps), rms_norm(k_TKE, self.key_norm_E, eps)), dim=1)


def _make_mixture(config: DecoderConfig, layer: int, dtype: torch.dtype) -> Mixture | None:
    shape = config.mixture
    if shape is None or layer not in shape.layers:
        return None
    return Mixture(shape, config.width, shape.layers.index(layer), dtype)


class Decoder(nn.Module):
    cos_PE: Tensor
    sin_PE: Tensor

    activations: Activations = "kept"

    def __init__(self, config: DecoderConfig, dtype: torch.dtype) -> None:
        """Allocates the weights without values; engine/models/loading.py fills them."""
        super().__init__()
        self.config = config
        self.embedding_VD = empty_parameter(config.vocab_size, config.width, dtype=dtype)
        self.layers = nn.ModuleList(DecoderLayer(config, index, dtype) for index in range(config.num_layers))
        self.final_norm_D = empty_parameter(config.width, dtype=dtype)
        self.head_VD = (
            self.embedding_VD if config.tied else empty_parameter(config.vocab_size, config.width, dtype=dtype)
        )
        cos_PE, sin_PE = rotary_tables(config)
        self.register_buffer("cos_PE", cos_PE, persistent=False)
        self.register_buffer("sin_PE", sin_PE, persistent=False)

    def forward(self, ids_T: Tensor, positions_T: Tensor, attend: Attend, choose: Choose = freely) -> Tensor:
        """The last layer's output, before the final norm; callers pass the rows that need logits to `logits`."""
        x_TD = functional.embedding(ids_T, self.embedding_VD)
        cos_T1E = self.cos_PE.index_select(0, positions_T).unsqueeze(1).to(x_TD.dtype)
        sin_T1E = self.sin_PE.index_select(0, positions_T).unsqueeze(1).to(x_TD.dtype)
        if self.activations == "kept" or not torch.is_grad_enabled():
            for layer in self.layers:
                report_layer_progress(x_TD)
                x_TD = layer(x_TD, cos_T1E, sin_T1E, attend, choose)
            return x_TD
        with save_on_cpu(pin_memory=x_TD.is_cuda) if self.activations == "offloaded" else nullcontext():
            for layer in self.layers:
                report_layer_progress(x_TD)
                through = partial(layer, cos_T1E=cos_T1E, sin_T1E=sin_T1E, attend=attend, choose=choose)
                x_TD = checkpoint(through, x_TD, use_reentrant=False, preserve_rng_state=False)
        return x_TD

    def hold_activations(self, how: Activations) -> None:
        self.activations = how
        for layer in self.layers:
            assert isinstance(layer, DecoderLayer)
            layer.activations = how

    def normed(self, x_ND: Tensor) -> Tensor:
        """The head's input."""
        return rms_norm(x_ND, self.final_norm_D, self.config.norm_eps)

    def logits(self, x_ND: Tensor) -> Tensor:
        return functional.linear(self.normed(x_ND), self.head_VD)

    def drop_head(self) -> None:
        """Frees the head of a model that predicts no tokens (a critic)."""
        self.head_VD = self.embedding_VD

    @property
    def num_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters())

    @property
    def num_active_parameters(self) -> int:
        """Parameters that one token uses: all except those of experts that it is not routed to."""
        shape = self.config.mixture
        num_idle = 0 if shape is None else shape.num_idle_experts * 3 * shape.expert_width * self.config.width
        return self.num_parameters - num_idle


def token_logprobs(logits_NV: Tensor, targets_N: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """(logprobs_N of the targets, entropy_N without gradient), both at this temperature."""
    all_NV = torch.log_softmax(logits_NV.float() / temperature, dim=-1)
    logprobs_N = all_NV.gather(1, targets_N.unsqueeze(1)).squeeze(1)
    with torch.no_grad():
        entropy_N = -(all_NV.exp() * all_NV).nan_to_num(0.0).sum(dim=-1)
    return logprobs_N, entropy_N
