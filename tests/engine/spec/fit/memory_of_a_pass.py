"""What a pass keeps and what it takes at its fullest, counted on tensors that have shapes and no memory."""

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Of all storages that an operation has made while this was entered, and that are still there."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._known = WeakIdKeyDictionary()
        self.now: int = 0
        self.peak: int = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        seen = {id(each.untyped_storage()) for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)}
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor) and id(leaf.untyped_storage()) not in seen:
                self._count(leaf.untyped_storage())
        return out

    def _count(self, storage: torch.UntypedStorage) -> None:
        if storage in self._known:
            return
        self._known[storage] = True
        num_bytes = storage.nbytes()
        self.now += num_bytes
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._gone, num_bytes)

    def _gone(self, num_bytes: int) -> None:
        self.now -= num_bytes


def saved_bytes(forward: Callable[[], Tensor], *, but: tuple[Tensor, ...] = ()) -> int:
    """Of each storage that autograd keeps once; `but`: not of these tensors."""
    storages: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        storages[storage._cdata] = storage
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        forward()
    left_out = {tensor.untyped_storage()._cdata for tensor in but}
    return sum(storage.nbytes() for address, storage in storages.items() if address not in left_out)
