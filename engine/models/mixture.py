"""A mixture of experts (Qwen3-MoE's): for each token a router chooses k of X small MLPs, whose outputs are added up.

    T tokens    D width    X experts, k of them for a token    M width of an expert    W MLPs that are mixtures
    S = T·k places, expert by expert    Y = X·2M rows: each expert's gate, then its up    Z = X·D rows: each one's down

Invariants:
- the router computes in float32, whatever other products are made in;
- who chooses is the caller's (`Choose`). Weights of the chosen are read off the router's own scores, with their
  gradient: a choice that is made again trains the router as one that is made here;
- nothing is added up in an order that chance decides, so a layer that is computed again chooses the same experts;
- experts stand one below the other in one matrix: their Hugging Face tensors are rows of it, whoever divides it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from engine.models.operations import empty_parameter, gated, take_rows

Choose = Callable[[int, Tensor, int], Tensor]
"""(which mixture, counted from the first; logits_TX; k) → chosen_Tk"""

# A row of what grouped products read begins at a multiple of 16 bytes: 8 numbers of 16 bits.
_GROUPED_WIDTH: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureShape:
    num_experts: int
    chosen: int
    """k"""
    expert_width: int
    renormalised: bool
    """Weights of the chosen add up to 1."""
    layers: tuple[int, ...]
    """Those whose MLP is a mixture."""

    @property
    def num_idle_experts(self) -> int:
        """Of all layers: those that a token does not meet."""
        return len(self.layers) * (self.num_experts - self.chosen)


def freely(mixture: int, logits_TX: Tensor, k: int) -> Tensor:
    """Choose."""
    return logits_TX.topk(k, dim=-1).indices


class Router(nn.Module):
    """A module of its own, so that whoever divides a layer can gather it in float32."""

    def __init__(self, shape: MixtureShape, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight_XD = empty_parameter(shape.num_experts, width, dtype=dtype)

    def forward(self, x_TD: Tensor) -> Tensor:
        with torch.autocast(x_TD.device.type, enabled=False):
            return functional.linear(x_TD.float(), self.weight_XD.float())


class Mixture(nn.Module):
    def __init__(self, shape: MixtureShape, width: int, index: int, dtype: torch.dtype) -> None:
        """`index`: which mixture, counted from the first."""
        super().__init__()
        self._shape, self._index = shape, index
        self.router = Router(shape, width, dtype)
        self.gate_up_YD = empty_parameter(shape.num_experts * 2 * shape.expert_width, width, dtype=dtype)
        self.down_ZM = empty_parameter(shape.num_experts * width, shape.expert_width, dtype=dtype)

    def forward(self, x_TD: Tensor, choose: Choose) -> Tensor:
        shape = self._shape
        logits_TX = self.router(x_TD)
        chosen_Tk = choose(self._index, logits_TX.detach(), shape.chosen)
        if shape.renormalised:  # as shares of all, divided by their sum; but that may be 0 of a choice made elsewhere
            weights_Tk = logits_TX.gather(1, chosen_Tk).softmax(dim=-1)
        else:
            weights_Tk = logits_TX.softmax(dim=-1).gather(1, chosen_Tk)
        return self._weighted(self._by_experts(x_TD, chosen_Tk), weights_Tk)

    def _weighted(self, y_TkD: Tensor, weights_Tk: Tensor) -> Tensor:
        return (y_TkD * weights_Tk.to(y_TkD.dtype).unsqueeze(-1)).sum(dim=1)

    def _by_experts(self, x_TD: Tensor, chosen_Tk: Tensor) -> Tensor:
        """Each token's outputs of its experts, y_TkD."""
        num_experts, (num_tokens, k) = self._shape.num_experts, chosen_Tk.shape
        expert_S, order_S = chosen_Tk.flatten().sort(stable=True)
        place_S = torch.empty_like(order_S)
        place_S[order_S] = torch.arange(len(order_S), device=order_S.device)
        # Where each expert's places end; counting them would make a GPU's host wait for the router.
        ends_X = torch.searchsorted(expert_S, torch.arange(num_experts, device=expert_S.device), right=True)
        dtype = _dtype_of_products(x_TD)
        x_SD = take_rows(x_TD.to(dtype), order_S // k)
        gate_SM, up_SM = _products(x_SD, self.gate_up_YD.to(dtype), ends_X).chunk(2, dim=-1)
        y_SD = _products(gated(gate_SM, up_SM), self.down_ZM.to(dtype), ends_X)
        return take_rows(y_SD, place_S).view(num_tokens, k, -1)


def _dtype_of_products(x_TD: Tensor) -> torch.dtype:
    device = x_TD.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x_TD.dtype


def _products(x_SI: Tensor, weights_RI: Tensor, ends_X: Tensor) -> Tensor:
    """Each expert's rows of x with its rows of the weights: R/X columns. I is what both have in common."""
    num_experts, width = len(ends_X), x_SI.shape[1]
    weights_XOI = weights_RI.view(num_experts, -1, width)
    if _are_grouped(width, weights_XOI.shape[1], x_SI.dtype):
        return grouped_products(x_SI, weights_XOI, ends_X)
    return looped_products(x_SI, weights_XOI, ends_X)


def _are_grouped(num_in: int, num_out: int, dtype: torch.dtype) -> bool:
    return dtype == torch.bfloat16 and num_in % _GROUPED_WIDTH == 0 and num_out % _GROUPED_WIDTH == 0


def asks_the_host(shape: MixtureShape | None, width: int, dtype: torch.dtype) -> bool:
    """How many tokens each expert has is asked there, so that a forward is no fixed row of operations."""
    if shape is None:
        return False
    sides = ((width, 2 * shape.expert_width), (shape.expert_width, width))
    return not all(_are_grouped(*side, dtype) for side in sides)


def grouped_products(x_SI: Tensor, weights_XOI: Tensor, ends_X: Tensor) -> Tensor:
    """In one call, in 16 bits."""
    y_SO: Tensor = functional.grouped_mm(x_SI, weights_XOI.transpose(1, 2), offs=ends_X.to(torch.int32))
    return y_SO


def looped_products(x_SI: Tensor, weights_XOI: Tensor, ends_X: Tensor) -> Tensor:
    """One product an expert. Unbound, not indexed: the gradient of every index would be as large as all experts."""
    ends = ends_X.tolist()
    counts = [end - start for start, end in zip([0, *ends], ends, strict=False)]
    parts = zip(torch.split(x_SI, counts), weights_XOI.unbind(), counts, strict=True)
    return torch.cat([functional.linear(x_sI, weight_OI) for x_sI, weight_OI, count in parts if count])
