"""A mixture of experts (Qwen3-MoE's): for each token a router chooses k of X small MLPs, whose outputs are summed.

    T tokens    D width    X experts, k of them for a token    M width of an expert    W MLPs that are mixtures
    S = T·k places, expert by expert    Y = X·2M rows: each expert's gate, then its up    Z = X·D rows: each one's down

Invariants:
- the router computes in float32, whatever the dtype of other products;
- the caller chooses the experts (`Choose`). Their weights come from the router's own scores, with gradient, so a
  replayed choice trains the router as a fresh one does;
- all sums have a fixed order, so a recomputed layer chooses the same experts;
- the experts' matrices are stacked into one, so their Hugging Face tensors are row ranges, however it is sharded.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from engine.models.operations import empty_parameter, gated, take_rows

Choose = Callable[[int, Tensor, int], Tensor]
"""(index of the mixture, counting mixtures only; logits_TX; k) → chosen_Tk"""

# Grouped products need rows that begin at a multiple of 16 bytes: 8 numbers of 16 bits.
_GROUPED_WIDTH: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureShape:
    num_experts: int
    chosen: int
    """k"""
    expert_width: int
    renormalised: bool
    """Whether the weights of the chosen experts add up to 1."""
    layers: tuple[int, ...]
    """The layers whose MLP is a mixture."""

    @property
    def num_idle_experts(self) -> int:
        """How many experts, over all layers, a token is not routed to."""
        return len(self.layers) * (self.num_experts - self.chosen)


def freely(mixture: int, logits_TX: Tensor, k: int) -> Tensor:
    """Implements `Choose` by the router's own scores."""
    return logits_TX.topk(k, dim=-1).indices


class Router(nn.Module):
    """A separate module, so that sharding can gather it in float32."""

    def __init__(self, shape: MixtureShape, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight_XD = empty_parameter(shape.num_experts, width, dtype=dtype)

    def forward(self, x_TD: Tensor) -> Tensor:
        with torch.autocast(x_TD.device.type, enabled=False):
            return functional.linear(x_TD.float(), self.weight_XD.float())


class Mixture(nn.Module):
    def __init__(self, shape: MixtureShape, width: int, index: int, dtype: torch.dtype) -> None:
        """`index`: counts mixtures only."""
        super().__init__()
        self._shape, self._index = shape, index
        self.router = Router(shape, width, dtype)
        self.gate_up_YD = empty_parameter(shape.num_experts * 2 * shape.expert_width, width, dtype=dtype)
        self.down_ZM = empty_parameter(shape.num_experts * width, shape.expert_width, dtype=dtype)

    def forward(self, x_TD: Tensor, choose: Choose) -> Tensor:
        shape = self._shape
        logits_TX = self.router(x_TD)
        chosen_Tk = choose(self._index, logits_TX.detach(), shape.chosen)
        if shape.renormalised:  # the chosen shares over their sum, without dividing: a replayed choice's sum may be 0
            weights_Tk = logits_TX.gather(1, chosen_Tk).softmax(dim=-1)
        else:
            weights_Tk = logits_TX.softmax(dim=-1).gather(1, chosen_Tk)
        return self._sum_weighted(self._run_experts(x_TD, chosen_Tk), weights_Tk)

    def _sum_weighted(self, y_TkD: Tensor, weights_Tk: Tensor) -> Tensor:
        return (y_TkD * weights_Tk.to(y_TkD.dtype).unsqueeze(-1)).sum(dim=1)

    def _run_experts(self, x_TD: Tensor, chosen_Tk: Tensor) -> Tensor:
        """The outputs of each token's experts, y_TkD."""
        num_experts, (num_tokens, k) = self._shape.num_experts, chosen_Tk.shape
        expert_S, order_S = chosen_Tk.flatten().sort(stable=True)
        place_S = torch.empty_like(order_S)
        place_S[order_S] = torch.arange(len(order_S), device=order_S.device)
        # The end of each expert's places; counting them would make the host wait for the GPU.
        ends_X = torch.searchsorted(expert_S, torch.arange(num_experts, device=expert_S.device), right=True)
        dtype = _dtype_of_products(x_TD)
        x_SD = take_rows(x_TD.to(dtype), order_S // k)
        gate_SM, up_SM = _multiply_by_expert(x_SD, self.gate_up_YD.to(dtype), ends_X).chunk(2, dim=-1)
        y_SD = _multiply_by_expert(gated(gate_SM, up_SM), self.down_ZM.to(dtype), ends_X)
        return take_rows(y_SD, place_S).view(num_tokens, k, -1)


def _dtype_of_products(x_TD: Tensor) -> torch.dtype:
    device = x_TD.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x_TD.dtype


def _multiply_by_expert(x_SI: Tensor, weights_RI: Tensor, ends_X: Tensor) -> Tensor:
    """Multiplies each expert's rows of x by its rows of the weights, into R/X columns. I: the shared dimension."""
    num_experts, width = len(ends_X), x_SI.shape[1]
    weights_XOI = weights_RI.view(num_experts, -1, width)
    if _can_group(width, weights_XOI.shape[1], x_SI.dtype):
        return grouped_products(x_SI, weights_XOI, ends_X)
    return looped_products(x_SI, weights_XOI, ends_X)


def _can_group(num_in: int, num_out: int, dtype: torch.dtype) -> bool:
    return dtype == torch.bfloat16 and num_in % _GROUPED_WIDTH == 0 and num_out % _GROUPED_WIDTH == 0


def asks_the_host(shape: MixtureShape | None, width: int, dtype: torch.dtype) -> bool:
    """True if a forward pass reads each expert's token count on the host, which rules out CUDA graphs."""
    if shape is None:
        return False
    sides = ((width, 2 * shape.expert_width), (shape.expert_width, width))
    return not all(_can_group(*side, dtype) for side in sides)


def grouped_products(x_SI: Tensor, weights_XOI: Tensor, ends_X: Tensor) -> Tensor:
    """All experts in one call, in 16 bits."""
    y_SO: Tensor = functional.grouped_mm(x_SI, weights_XOI.transpose(1, 2), offs=ends_X.to(torch.int32))
    return y_SO


def looped_products(x_SI: Tensor, weights_XOI: Tensor, ends_X: Tensor) -> Tensor:
    """One product per expert. Unbinds instead of indexing: the gradient of an index is as large as all experts."""
    ends = ends_X.tolist()
    counts = [end - start for start, end in zip([0, *ends], ends, strict=False)]
    parts = zip(torch.split(x_SI, counts), weights_XOI.unbind(), counts, strict=True)
    return torch.cat([functional.linear(x_sI, weight_OI) for x_sI, weight_OI, count in parts if count])
