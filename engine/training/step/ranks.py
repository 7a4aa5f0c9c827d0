"""The interface to the processes that make one step together."""

from typing import Protocol

from torch import Tensor


class Ranks(Protocol):
    @property
    def index(self) -> int: ...

    @property
    def count(self) -> int: ...

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over all ranks, on each of them."""

    def max(self, tensor: Tensor) -> Tensor: ...


class Alone:
    index = 0
    count = 1

    def sum(self, tensor: Tensor) -> Tensor:
        return tensor

    def max(self, tensor: Tensor) -> Tensor:
        return tensor
