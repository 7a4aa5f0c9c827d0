"""The operations of a layer.

T tokens    N rows    D width    F width of the MLP
"""

from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional


def empty_parameter(*shape: int, dtype: torch.dtype) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape, dtype=dtype))


def take_rows(x: Tensor, index: Tensor) -> Tensor:
    """`x[index]`, with a backward pass made for rows that are taken many times."""
    return functional.embedding(index, x.reshape(x.shape[0], -1)).view(-1, *x.shape[1:])


def rms_norm(x_TD: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    if is_lean() and x_TD.dtype == torch.float32 and x_TD.device.type == "cpu":
        # torch's own takes eight operations on a CPU, and a Python number costs as much as an operation.
        length_T1 = torch.linalg.vector_norm(x_TD, dim=-1, keepdim=True)
        mean_square_T1 = torch.addcmul(_on_cpu(eps), length_T1, length_T1, value=1.0 / x_TD.shape[-1])
        return (x_TD * mean_square_T1.rsqrt_()).mul_(weight_D)
    return functional.rms_norm(x_TD, weight_D.shape, weight_D, eps)


@cache
def _on_cpu(number: float) -> Tensor:
    return torch.tensor(number)


def add_linear(x_TD: Tensor, y_TF: Tensor, weight_DF: Tensor) -> Tensor:
    if is_lean():
        return torch.addmm(x_TD, y_TF, weight_DF.t())
    return x_TD + functional.linear(y_TF, weight_DF)


def gated(gate_TF: Tensor, up_TF: Tensor) -> Tensor:
    return functional.silu(gate_TF).mul_(up_TF) if is_lean() else functional.silu(gate_TF) * up_TF


def is_lean() -> bool:
    """True in rollouts, which need no gradients and compute in the weights' dtype, so fused and in-place forms work."""
    return torch.is_inference_mode_enabled() and not torch.is_autocast_enabled()
