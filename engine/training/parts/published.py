"""What a process writes of a version: its values, converted straight into their places among the version's bytes.

    qkv  held by rank 0 │ held by rank 1         values as torch holds them, float32
           │       │         │     │
           ▼       ▼         ▼     ▼             converted on the way, copied once
    ┌ q_proj ──────┬─ k_proj ┬───┬ v_proj ┐      bytes of the version, in the dtype that rollouts run in

Invariants:
- places follow from shapes alone, so each of several ranks knows its own without a word to the others;
- what the ranks write does not overlap, and together it is every byte; the gap behind a tensor, which stays zero, is
  of whoever has the tensor's end.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from engine.models.families.trained_model import TrainedModel, public_views
from engine.policy.lineage import WeightsId
from engine.signs import at_work
from engine.training.parts.layout import Place, Views, places_of, whole_shape
from engine.training.parts.lora import Adapter
from engine.training.port import Allocate
from engine.weights.port import LowRank, TensorEntry, WeightVersion
from engine.weights.snapshot import bytes_of, lay_out, pack_filled, room_of, view_of_values
from engine.weights.spans import Spans
from engine.weights.sums import added, fetched, sum_of_range

Held = Callable[[Place], range]
"""The values of a parameter that a process has, counted in it when it is flat."""


def everything(place: Place) -> range:
    return range(place.shape.numel())


def held_rows(rows: Callable[[Place], range]) -> Held:
    def held(place: Place) -> range:
        width, own = math.prod(place.shape[1:]), rows(place)
        return range(own.start * width, own.stop * width)

    return held


@dataclass(frozen=True, slots=True)
class _Run:
    """Values that stand together in a parameter and in the version."""

    values: slice
    """Of those that are held."""
    start: int
    """Their first byte in the version."""
    num_bytes: int
    room: int
    """With the gap behind them, if they end their tensor."""
    tensor: int
    """Its number in the version."""
    place: int
    """The first value's, in its tensor."""


class Published:
    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        views: Views,
        dtype: torch.dtype,
        *,
        values_of: Callable[[str], Tensor],
        held: Held = everything,
        low_rank: LowRank | None = None,
    ) -> None:
        """`values_of`: a parameter's values that are held, flat, as they are then."""
        with torch.device("meta"):
            empty = {name: torch.empty(whole_shape(each), dtype=dtype) for name, each in parameters.items()}
        self.entries = lay_out(views(empty))
        self.low_rank = low_rank
        """Of an adapter's version."""
        self._dtype, self._values_of = dtype, values_of
        places = places_of(parameters, views)
        numbered = {entry.name: (number, entry) for number, entry in enumerate(self.entries)}
        self._runs = {name: list(_runs(place, numbered, held, dtype.itemsize)) for name, place in places.items()}
        self.share = Spans.joined((run.start, run.start + run.room) for runs in self._runs.values() for run in runs)
        """The bytes that this process writes."""

    @torch.no_grad()
    def write(self, memory: memoryview, spans: Spans) -> tuple[int, ...]:
        """`memory`: of `spans`, to which the own ones belong. The sums of what was written, of each tensor (sums.py),
        which are taken of the values, not of their copies."""
        tensors, sums = [], []
        for parameter, runs in self._runs.items():
            values = self._values_of(parameter)  # also without a run: ranks may have to ask together
            for run in runs:
                target = view_of_values(memory, self._dtype, spans.place_of(run.start), run.num_bytes)
                with at_work("copy"):
                    narrow = self._narrow(values[run.values])
                    target.copy_(narrow)
                shape = self.entries[run.tensor].shape
                tensors.append(run.tensor)
                sums.append(sum_of_range(narrow, run.place, shape, dtype=self._dtype))
        of_version = [0] * len(self.entries)
        for tensor, each in zip(tensors, fetched(sums), strict=True):
            of_version[tensor] += each
        return added([of_version])

    def _narrow(self, values: Tensor) -> Tensor:
        """Of a GPU's: a copy to the host would carry them as they are, and round them there."""
        return values if values.device.type == "cpu" else values.to(self._dtype)

    def pack(self, weights: WeightsId, allocate: Allocate | None) -> WeightVersion:
        """A whole version. Of several ranks: this one's values in it, and zeros for the others', without sums."""
        whole = Spans.joined([(0, bytes_of(self.entries))])

        def fill(buffer: memoryview) -> tuple[int, ...]:
            sums = self.write(buffer, whole)
            return sums if self.share == whole else ()

        return pack_filled(
            self.entries,
            fill,
            weights=weights,
            allocate=allocate,
            low_rank=self.low_rank,
        )


def published(
    model: TrainedModel,
    adapter: Adapter | None,
    values_of: Callable[[nn.Parameter, range], Tensor],
    *,
    held: Held = everything,
) -> Published:
    """Of a model by Hugging Face's names, in the dtype that rollouts run in; or of its adapter, alone and as it is.
    `values_of`: those of a parameter that are held, flat."""
    named = dict(model.named_parameters()) if adapter is None else adapter.parameters
    views: Views = dict if adapter is not None else partial(public_views, model.config)
    places = places_of(named, views)

    def values(name: str) -> Tensor:
        parameter = model.get_parameter(name) if adapter is None else adapter.parameters[name]
        return values_of(parameter, held(places[name]))

    dtype, low_rank = (model.config.dtype, None) if adapter is None else (torch.float32, adapter.published_as)
    return Published(named, views, dtype, values_of=values, held=held, low_rank=low_rank)


def _runs(place: Place, entries: Mapping[str, tuple[int, TensorEntry]], held: Held, value_bytes: int) -> Iterator[_Run]:
    """`entries`: with their numbers."""
    own = held(place)
    for public, shape, offset in place.parts:
        first, last = max(own.start, offset), min(own.stop, offset + shape.numel())
        if first >= last:
            continue
        (tensor, entry), num_bytes = entries[public], (last - first) * value_bytes
        is_end = last == offset + shape.numel()
        yield _Run(
            values=slice(first - own.start, last - own.start),
            start=entry.offset + (first - offset) * value_bytes,
            num_bytes=num_bytes,
            room=num_bytes + (room_of(entry) - entry.num_bytes if is_end else 0),
            tensor=tensor,
            place=first - offset,
        )
