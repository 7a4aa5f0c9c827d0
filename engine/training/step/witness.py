"""A witness of a step: what was computed on its way, in the order of computing, for whoever compares two steps.

Like signs of life it is at hand everywhere and asks for no listener: without one, nothing is copied. It hears its own
thread, and so of several ranks its own.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

_here = threading.local()


class Witness:
    def __init__(self) -> None:
        self._heard: dict[str, list[Tensor]] = {}
        self._update = 1

    def hear(self, what: str, value: Tensor) -> None:
        self._heard.setdefault(f"update {self._update}, {what}", []).append(value.detach().reshape(-1).cpu())

    def end_update(self) -> None:
        self._update += 1

    @property
    def seen(self) -> dict[str, Tensor]:
        """One tensor of each kind and update, its micro-batches one after the other."""
        return {name: torch.cat(values) for name, values in self._heard.items()}


@contextmanager
def witnessing() -> Iterator[Witness]:
    _here.witness = witness = Witness()
    try:
        yield witness
    finally:
        _here.witness = None


def witnessed(**values: Tensor) -> None:
    """Of one micro-batch."""
    witness: Witness | None = getattr(_here, "witness", None)
    if witness is not None:
        for what, value in values.items():
            witness.hear(what, value)


def update_witnessed(**values: Tensor) -> None:
    """The last of an update."""
    witnessed(**values)
    witness: Witness | None = getattr(_here, "witness", None)
    if witness is not None:
        witness.end_update()
