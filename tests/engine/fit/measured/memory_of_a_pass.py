"""What a pass keeps and what it takes at its fullest, counted on tensors that have shapes and perhaps no memory."""

import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary


@dataclass(slots=True, weakref_slot=True)
class _Counted:
    num_bytes: int


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Of all storages that an operation has made while this was entered, and that are still there, at the size that
    they have: FSDP empties what it has gathered by making it smaller. `on`: the kind of device that has them."""

    def __init__(self, on: str = "cpu") -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._on = on
        self._known = WeakIdKeyDictionary()
        self._resize = torch.UntypedStorage.resize_
        self.now: int = 0
        self.peak: int = 0

    def __enter__(self) -> Self:
        resize = self._resize

        def counted_resize(storage: torch.UntypedStorage, size: int) -> None:
            resize(storage, size)
            self._resized(storage)

        torch.UntypedStorage.resize_ = counted_resize  # type: ignore[method-assign, assignment]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        seen = {id(each.untyped_storage()) for each in _plain_tensors((args, kwargs))}
        for each in _plain_tensors(out):
            if id(each.untyped_storage()) not in seen and each.device.type == self._on:
                self._count(each.untyped_storage())
        return out

    def _count(self, storage: torch.UntypedStorage) -> None:
        if storage in self._known:
            return
        counted = self._known[storage] = _Counted(storage.nbytes())
        self._add(counted.num_bytes)
        weakref.finalize(storage, self._gone, counted)

    def _resized(self, storage: torch.UntypedStorage) -> None:
        if storage in self._known:
            counted: _Counted = self._known[storage]
            self._add(storage.nbytes() - counted.num_bytes)
            counted.num_bytes = storage.nbytes()

    def _gone(self, counted: _Counted) -> None:
        self._add(-counted.num_bytes)

    def _add(self, num_bytes: int) -> None:
        self.now += num_bytes
        self.peak = max(self.peak, self.now)


def _plain_tensors(tree: Any) -> Iterator[Tensor]:
    """Of a DTensor its own part."""
    for leaf in tree_leaves(tree):
        if isinstance(leaf, DTensor):
            yield leaf._local_tensor
        elif isinstance(leaf, Tensor):
            yield leaf


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
