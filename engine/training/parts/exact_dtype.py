"""The dtype of every weight that trains or is compared with, checked once it is there: a library, a processor or a
checkpoint may have made it another, and rounded weights train on without a word.

Invariant: of a parameter that is divided among ranks, this rank's part is looked at too.
"""

from collections.abc import Mapping

import torch
from torch import nn

from engine.training.parts.layout import own_part


class WrongDtype(ValueError):
    """Weights are not in the dtype that was asked for. A `ValueError`, as the same model on the same machine gets the
    same weights again."""

    retryable = False


def check_dtypes(modules: Mapping[str, nn.Module], asked: torch.dtype) -> None:
    """`modules`: by the name that an error calls them."""
    wrong = [
        f"{role}'s {name} is {_spell(found)}"
        for role, module in modules.items()
        for name, parameter in module.named_parameters()
        for found in sorted({parameter.dtype, own_part(parameter).dtype} - {asked}, key=str)
    ]
    if wrong:
        more = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        raise WrongDtype(f"weights must be {_spell(asked)}: {', '.join(wrong[:5])}{more}")


def _spell(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
