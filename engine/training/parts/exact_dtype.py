"""Checks the dtype of every trained or reference weight after loading: a library, a processor or a checkpoint may have
changed it, and training on rounded weights would raise no error.

Invariant: for a sharded parameter, this rank's shard is checked too.
"""

from collections.abc import Mapping

import torch
from torch import nn

from engine.training.parts.layout import own_part


class WrongDtype(ValueError):
    """Weights do not have the required dtype. A `ValueError`, not retryable: the same model on the same machine would
    load the same weights again."""

    retryable = False


def check_dtypes(modules: Mapping[str, nn.Module], required: torch.dtype) -> None:
    """`modules`: by their names in errors."""
    wrong = [
        f"{role}'s {name} is {_spell(dtype)}"
        for role, module in modules.items()
        for name, parameter in module.named_parameters()
        for dtype in sorted({parameter.dtype, own_part(parameter).dtype} - {required}, key=str)
    ]
    if wrong:
        more = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        raise WrongDtype(f"weights must be {_spell(required)}: {', '.join(wrong[:5])}{more}")


def _spell(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
