"""The places of a public layout's tensors (Hugging Face's, peft's) among parameters that fuse several of them.

Invariant: places are read off the views themselves, of tensors that have a shape and nothing else; so they are known of
a parameter whose values are divided among ranks, too.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter

import torch
from torch import Tensor, nn

Views = Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]]
"""Tensors shaped and named like parameters → views of them, by public name."""


@dataclass(frozen=True, slots=True)
class Place:
    """The public tensors in a parameter: runs of its values."""

    shape: torch.Size
    parts: tuple[tuple[str, torch.Size, int], ...]
    """Name, shape, offset."""

    def split(self, values: Tensor) -> Iterator[tuple[str, Tensor]]:
        for name, shape, offset in self.parts:
            yield name, values.reshape(-1)[offset : offset + shape.numel()].view(shape)

    def fill(self, values: Tensor, tensors: Mapping[str, Tensor]) -> None:
        for name, part in self.split(values.detach()):
            part.copy_(tensors[name])


def places_of(parameters: Mapping[str, nn.Parameter], views: Views) -> dict[str, Place]:
    own = {name: torch.empty(whole_shape(each), device="meta") for name, each in parameters.items()}
    names = {id(tensor): name for name, tensor in own.items()}
    parts: dict[str, list[tuple[str, torch.Size, int]]] = {name: [] for name in own}
    for public, view in views(own).items():
        name = names[id(view if view._base is None else view._base)]
        parts[name].append((public, view.shape, int(view.storage_offset())))
    return {name: Place(each.shape, tuple(sorted(parts[name], key=itemgetter(2)))) for name, each in own.items()}


def whole_shape(parameter: nn.Parameter) -> torch.Size:
    """Of a parameter that DeepSpeed has divided among ranks, what it was before."""
    return torch.Size(getattr(parameter, "ds_shape", parameter.shape))
