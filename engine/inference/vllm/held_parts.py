"""Sums of the weights that a worker holds after an install, as parts of the published tensors.

    plain (a GPU)     load ─▶ copy into place ─▶ sum         of the parameters that steps use
    packed (a CPU)    load ─▶ sum ─▶ pack ─▶ compare         of the parameters before they are packed

A packed matrix is compared with the plain one in NUM_COLUMNS columns, exactly, by products with unit vectors. No
product returns the weights of packed experts: their packed bits are summed when they are made and when they are in
place.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, Self

import torch
from torch import Tensor, nn
from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts

from engine.inference.vllm.stored import Shapes, Stored, is_packed, packed_heads, stored_tensors
from engine.process.progress import working
from engine.weights.low_rank import names_of
from engine.weights.parts import HeldParts, Part, Rectangle
from engine.weights.sums import BITS, fetched, sum_of, sum_of_rectangle

NUM_COLUMNS: Final = 64  # a product with so many rows costs what the probe's costs
NOWHERE: Final = Rectangle(0, 0, 0, 0)


class PartReader:
    """Used around one install."""

    def __init__(self, model: nn.Module, shapes: Shapes, dtypes: Mapping[str, torch.dtype], *, version: int) -> None:
        """`shapes`, `dtypes`: of the published tensors."""
        self._model, self._dtypes, self._version = model, dtypes, version
        self._stored: dict[Any, list[Stored]] = {}
        for each in stored_tensors(model, shapes):
            self._stored.setdefault(each.layer, []).append(each)
        self._packed = [layer for layer in self._stored if is_packed(layer)]
        self._packers: dict[Any, Callable[[Any], None]] = {}
        self._parts: list[Part] = []
        self._in_place: dict[Any, tuple[int, ...]] = {}
        """The sums that each packed layer has to have in place, if it was loaded."""
        self._stale: set[str] = set()

    def __enter__(self) -> Self:
        """vLLM packs each layer when it is loaded: the plain values exist only just before."""
        for layer in self._packed:
            self._packers[layer] = layer.quant_method.process_weights_after_loading
            layer.quant_method.process_weights_after_loading = partial(self._read_and_pack, self._packers[layer])
        return self

    def __exit__(self, *failure: object) -> None:
        for layer, pack in self._packers.items():
            layer.quant_method.process_weights_after_loading = pack

    def held(self) -> HeldParts:
        """Call it when the install has finished."""
        for layer in self._stored:
            if layer not in self._packed:
                self._parts += self._parts_of(layer)
            elif layer not in self._in_place or self._in_place[layer] != _sums_in_place(layer):
                self._mark_stale(layer)
        for head in packed_heads(self._model):
            if differs_packed(head, head.weight, self._version):
                for layer in self._stored:
                    if layer._parameters.get("weight") is head.weight:  # the head's own, or a tied embedding
                        self._mark_stale(layer)
        return HeldParts(parts=tuple(self._parts), stale=frozenset(self._stale))

    def _read_and_pack(self, pack: Callable[[Any], None], layer: Any) -> None:
        self._parts += self._parts_of(layer)
        plain = layer._parameters.get("weight")
        pack(layer)
        if plain is not None and differs_packed(layer, plain, self._version):
            self._mark_stale(layer)
        self._in_place[layer] = _sums_in_place(layer)

    def _mark_stale(self, layer: Any) -> None:
        matrices = [stored for stored in self._stored[layer] if stored.parameter != "bias"]
        self._stale |= {window.name for stored in matrices for window in stored.windows}

    def _parts_of(self, layer: Any) -> list[Part]:
        parts: list[Part] = []
        sums: list[Tensor] = []
        for stored in self._stored[layer]:
            values = stored.values()
            for window in stored.windows:
                dtype = self._dtypes[window.name]
                if values is None or values.dtype not in (dtype, torch.float32):
                    parts.append(Part(window.name, NOWHERE, None))
                    continue
                own = window.cut(values)
                place = window.rectangle(own)
                parts.append(Part(window.name, place, len(sums)))
                sums.append(sum_of_rectangle(own, place.row, place.column, dtype=dtype))
        known = fetched(sums)
        return [part if part.sum is None else part._replace(sum=known[part.sum]) for part in parts]


def adapter_parts(model: nn.Module, slot: int, shapes: Shapes, adapted: Shapes) -> HeldParts:
    """The matrices with which steps compute the adapter in this slot. `shapes`: of the base's tensors; `adapted`: of
    the adapter's. A matrix B is cut like the rows of its weight, A like the columns."""
    wrappers: dict[Any, Any] = {
        layer.base_layer: layer for layer in model.modules() if hasattr(layer, "lora_a_stacked")
    }
    places: list[tuple[str, Rectangle]] = []
    sums: list[Tensor] = []
    for stored in stored_tensors(model, shapes):
        wrapper = wrappers.get(stored.layer)
        if wrapper is None or stored.parameter != "weight" or len(stored.windows) != wrapper.n_slices:
            continue
        for window, a, b in zip(stored.windows, wrapper.lora_a_stacked, wrapper.lora_b_stacked, strict=True):
            first, second = names_of(window.name.removesuffix(".weight"))
            if first not in adapted:
                continue
            rank = adapted[first][0]
            for name, values, row, column in (
                (first, a[slot, 0, :rank], 0, window.column),
                (second, b[slot, 0, :, :rank], window.first, 0),
            ):
                places.append((name, Rectangle(row, column, *values.shape)))
                sums.append(sum_of_rectangle(values, row, column, dtype=values.dtype))
    return HeldParts(parts=tuple(Part(*at, each) for at, each in zip(places, fetched(sums), strict=True)))


@torch.no_grad()
def differs_packed(layer: Any, plain: Tensor, version: int) -> bool:
    """Compares NUM_COLUMNS columns, other ones for each version. A row with NaN returns nothing but NaN: the probe
    reports those."""
    width = plain.shape[1]
    num_columns = min(width, NUM_COLUMNS)
    columns = (torch.arange(num_columns) * width // num_columns + version) % width
    units = torch.zeros(num_columns, width, dtype=plain.dtype)
    units[torch.arange(num_columns), columns] = 1.0
    with working("sum"):
        packed = layer.quant_method.apply(layer, units).t()
    return bool(((packed != plain[:, columns]) & ~packed.isnan()).any())


def _sums_in_place(layer: Any) -> tuple[int, ...]:
    """Of packed experts."""
    if not isinstance(layer, RoutedExperts):
        return ()
    both = [each for each in (layer.w13_weight, layer.w2_weight) if each.dtype.itemsize in BITS]
    return fetched([sum_of(each.flatten(0, -2)) for each in both])
