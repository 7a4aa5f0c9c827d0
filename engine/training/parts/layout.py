"""The places of public tensors (Hugging Face's, peft's) in parameters that fuse several of them.

    qkv  row 0   ┌ q_proj ┐ rank 0        each of 4 ranks holds as many rows; the last ones may hold fewer, or none
                 │        │ rank 1
                 ├ k_proj ┤ rank 2        = rows of k_proj and rows of v_proj
                 └ v_proj ┘ rank 3

Invariants:
- places are read from views of meta tensors, so they are known for sharded parameters too;
- a public tensor is a range of whole rows of its parameter, and every row belongs to one public tensor.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter

import torch
from torch import Tensor, nn

from engine.models.families.trained_model import ModelConfig, public_views

Views = Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]]
"""Tensors shaped and named like parameters → views of them, by public name."""


@dataclass(frozen=True, slots=True)
class Place:
    """A parameter's shape, and the public tensors in it."""

    shape: torch.Size
    parts: tuple[tuple[str, torch.Size, int], ...]
    """Name, shape, offset."""

    def split(self, values: Tensor) -> Iterator[tuple[str, Tensor]]:
        for name, shape, offset in self.parts:
            yield name, values.reshape(-1)[offset : offset + shape.numel()].view(shape)


def rows_of(rank: int, num_ranks: int, num_rows: int) -> range:
    """A rank's rows as torch shards them: equal chunks, of which the last ones may be shorter or empty."""
    chunk = -(-num_rows // num_ranks)
    start = min(rank * chunk, num_rows)
    return range(start, min(start + chunk, num_rows))


def places_of(parameters: Mapping[str, nn.Parameter], views: Views) -> dict[str, Place]:
    own = {name: torch.empty(whole_shape(each), device="meta") for name, each in parameters.items()}
    names = {id(tensor): name for name, tensor in own.items()}
    parts: dict[str, list[tuple[str, torch.Size, int]]] = {name: [] for name in own}
    for public, view in views(own).items():
        name = names[id(view if view._base is None else view._base)]
        parts[name].append((public, view.shape, int(view.storage_offset())))
    return {name: Place(each.shape, tuple(sorted(parts[name], key=itemgetter(2)))) for name, each in own.items()}


def decoder_places(config: ModelConfig, parameters: Mapping[str, nn.Parameter]) -> dict[str, Place]:
    return places_of(parameters, lambda own: public_views(config, own))


def own_part(tensor: Tensor) -> Tensor:
    """This rank's values of a parameter or gradient, without a copy: FSDP's rows, DeepSpeed's partition, or all."""
    if hasattr(tensor, "ds_tensor"):
        part: Tensor = tensor.ds_tensor
        return part
    if hasattr(tensor, "to_local"):
        rows: Tensor = tensor.to_local().detach()
        return rows
    return tensor.detach()


def whole_shape(parameter: nn.Parameter) -> torch.Size:
    """The shape of a parameter before sharding."""
    return torch.Size(getattr(parameter, "ds_shape", parameter.shape))


def whole_values(parameter: nn.Parameter) -> Tensor:
    """All values of a parameter that FSDP has sharded. Collective."""
    whole: Tensor = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
    return whole.detach()
