"""A witness of a step: records intermediate values in the order of computation, for the comparison of two steps.

Any code of a step may report values; without a witness they are not copied. A witness records its own thread, and so
only its own rank.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

_here = threading.local()


class Witness:
    def __init__(self) -> None:
        self._recorded: dict[str, list[Tensor]] = {}
        self._update = 1

    def record(self, what: str, value: Tensor) -> None:
        self._recorded.setdefault(f"update {self._update}, {what}", []).append(value.detach().reshape(-1).cpu())

    def end_update(self) -> None:
        self._update += 1

    @property
    def seen(self) -> dict[str, Tensor]:
        """One tensor for each kind and update, concatenated over micro-batches."""
        return {name: torch.cat(values) for name, values in self._recorded.items()}


@contextmanager
def witnessing() -> Iterator[Witness]:
    _here.witness = witness = Witness()
    try:
        yield witness
    finally:
        _here.witness = None


def witnessed(**values: Tensor) -> None:
    """Reports values of one micro-batch."""
    witness: Witness | None = getattr(_here, "witness", None)
    if witness is not None:
        for what, value in values.items():
            witness.record(what, value)


def update_witnessed(**values: Tensor) -> None:
    """Reports the last values of an update."""
    witnessed(**values)
    witness: Witness | None = getattr(_here, "witness", None)
    if witness is not None:
        witness.end_update()
