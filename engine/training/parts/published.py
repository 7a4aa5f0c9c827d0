"""A process's share of a published version: its values, converted straight into their places among the version's bytes.

    qkv  held by rank 0 │ held by rank 1         values as torch holds them, float32
           │       │         │     │
           ▼       ▼         ▼     ▼             converted on the way, copied once
    ┌ q_proj ──────┬─ k_proj ┬───┬ v_proj ┐      bytes of the version, in the dtype of rollouts

Invariants:
- places follow from shapes alone, so each rank knows its own without communication;
- the ranks' bytes do not overlap and cover the version; the gap after a tensor, which stays zero, belongs to the rank
  that has the tensor's end.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from engine.models.families.trained_model import TrainedModel, public_views
from engine.policy.lineage import WeightsId
from engine.process.progress import working
from engine.training.parts.layout import Place, Views, places_of, whole_shape
from engine.training.parts.lora import Adapter
from engine.training.port import Allocate
from engine.weights.port import LowRank, TensorEntry, WeightVersion
from engine.weights.snapshot import bytes_of, lay_out, pack_filled, room_of, view_of_values
from engine.weights.spans import Spans
from engine.weights.sums import added, fetched, sum_of_range

Held = Callable[[Place], range]
"""The range of a parameter's flat values that a process holds."""


def everything(place: Place) -> range:
    return range(place.shape.numel())


def held_rows(rows: Callable[[Place], range]) -> Held:
    def held(place: Place) -> range:
        width, own = math.prod(place.shape[1:]), rows(place)
        return range(own.start * width, own.stop * width)

    return held


@dataclass(frozen=True, slots=True)
class _Run:
    """Values that are contiguous in a parameter and in the version."""

    values: slice
    """Among the held values."""
    start: int
    """The first byte in the version."""
    num_bytes: int
    room: int
    """Bytes including the gap after the tensor, if the run ends its tensor."""
    tensor: int
    """The tensor's number in the version."""
    place: int
    """The first value's place in its tensor."""


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
        """`values_of`: the current values of a parameter that this process holds, flat."""
        with torch.device("meta"):
            empty = {name: torch.empty(whole_shape(each), dtype=dtype) for name, each in parameters.items()}
        self.entries = lay_out(views(empty))
        self.low_rank = low_rank
        """Set for an adapter's version."""
        self._dtype, self._values_of = dtype, values_of
        places = places_of(parameters, views)
        numbered = {entry.name: (number, entry) for number, entry in enumerate(self.entries)}
        self._runs = {name: list(_runs(place, numbered, held, dtype.itemsize)) for name, place in places.items()}
        self.share = Spans.joined((run.start, run.start + run.room) for runs in self._runs.values() for run in runs)
        """The bytes that this process writes."""

    @torch.no_grad()
    def write(self, memory: memoryview, spans: Spans) -> tuple[int, ...]:
        """`memory`: covers `spans`, which include this process's. Returns each tensor's sum of the written values
        (sums.py), computed from the values, not from their copies. Every rank makes this call."""
        tensors, sums = [], []
        for parameter, runs in self._runs.items():
            values = self._values_of(parameter)  # also without a run, since reading may be collective
            for run in runs:
                target = view_of_values(memory, self._dtype, spans.place_of(run.start), run.num_bytes)
                with working("copy"):
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
        """Rounds a GPU's values before the copy, which would otherwise move float32 and round on the host."""
        return values if values.device.type == "cpu" else values.to(self._dtype)

    def pack(self, weights: WeightsId, allocate: Allocate | None) -> WeightVersion:
        """A whole version. With several ranks: this rank's values, and zeros for the others', without sums."""
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
    """A model's version by Hugging Face names in the dtype of rollouts; with an adapter, the adapter alone in float32.
    `values_of`: a parameter's held values, flat."""
    named = dict(model.named_parameters()) if adapter is None else adapter.parameters
    views: Views = dict if adapter is not None else partial(public_views, model.config)
    places = places_of(named, views)

    def values(name: str) -> Tensor:
        parameter = model.get_parameter(name) if adapter is None else adapter.parameters[name]
        return values_of(parameter, held(places[name]))

    dtype, low_rank = (model.config.dtype, None) if adapter is None else (torch.float32, adapter.published_as)
    return Published(named, views, dtype, values_of=values, held=held, low_rank=low_rank)


def _runs(place: Place, entries: Mapping[str, tuple[int, TensorEntry]], held: Held, value_bytes: int) -> Iterator[_Run]:
    """The runs of one parameter. `entries`: by public name, with their numbers."""
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
