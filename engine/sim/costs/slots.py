"""Slots: the costs of the versions that one replica holds at once.

    whole      n copies of the weights, for good; each that something runs on is read and launched once more in a step
    delta      one copy, of the newest; a version k versions older is what differs from it, in the room for keys and
               values from one installation to the next, and its rows get a correction of their own in each step:
                   changed(k) = 1 − (1 − changed)^k              bytes(k) = changed(k) · params · (value + index)
                   more       = launches + max( bytes(k) / (bytes/s · TP · η_m),
                                                rows · 2 · changed(k) · params / (flops · TP · η_sparse) )
    adapter    one base and n adapters of a LoRA job (lora.py), all rows in one batch:
                   more       = 2 · launches + max( Σ bytes / (bytes/s · TP · η_m), arithmetic of all rows )

`changed(k)` is assumed: each step draws the values that it changes independently, so k steps change the union. Values
that change back make it less; no order of steps makes it more than k · changed. A difference that would be no smaller
than a copy is a copy. Corrections run one after the other, after the dense step.

Invariant: a further version never makes a step shorter, nor the room larger.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol, Self

from engine.sim.costs.constants import AS_THEY_STAND, Book, Constant
from engine.sim.costs.decode import GEMM_SHARE, DecodeCost, Load
from engine.sim.costs.lora import PRODUCTS, adapter_bytes
from engine.sim.costs.models import BYTES_PER_WEIGHT, Model

CHANGED_SHARE: Final = Constant(
    name="changed_share",
    value=0.02,
    unit="of the values, a step",
    origin="assumed",
    source="bf16 weights at learning rates of RL: 1 to 5 %, which the sweep spans",
    sweep=(0.5, 2.5),
)
SPARSE_SHARE: Final = Constant(
    name="sparse_share",
    value=0.03,
    unit="of the flops",
    origin="assumed",
    source="no tensor cores for scattered values: such devices have 7 % of their dense flops without, of which half",
)
SMALL_LAUNCH: Final = Constant(
    name="small_launch",
    value=3e-6,
    unit="s, seven a layer",
    origin="assumed",
    source="a small kernel for each product of a layer, within a captured graph",
)
INDEX_BYTES: Final = 2
"""The index of a value in a difference: its column, in rows of at most 65,536."""

Rows = Sequence[tuple[int, float]]
"""For each version in use: how many versions older than the newest it is, and its rows."""


def changed_in(share: float, versions: int) -> float:
    """The share of values that differ after several versions, if each version changes this share."""
    return 1 - (1 - min(1.0, share)) ** versions


def of_a_copy(share: float, versions: int) -> float:
    """The size of such a difference as a share of a copy."""
    return min(1.0, changed_in(share, versions) * (BYTES_PER_WEIGHT + INDEX_BYTES) / BYTES_PER_WEIGHT)


class SlotCost(Protocol):
    """Of one replica."""

    def load(self, rows: Rows) -> Load: ...

    def taken_tokens(self, ages: Iterable[int]) -> int:
        """The KV tokens whose room older versions of these ages take."""
        ...

    def making_s(self, before: Iterable[int], after: Iterable[int]) -> float:
        """The time to make older versions of these ages one version older, in addition to loading the new weights."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Slots:
    num: int = 1
    kept: Literal["whole", "delta", "adapter"] = "whole"
    rank: int = 0
    """Of adapters."""

    @classmethod
    def of_lora(cls, num: int, rank: int) -> Self:
        return cls(num=num, kept="adapter", rank=rank)

    def weight_bytes(self, model: Model) -> float:
        """The bytes of weights that are always taken."""
        match self.kept:
            case "whole":
                return self.num * model.weight_bytes
            case "delta":
                return model.weight_bytes
            case "adapter":
                return model.weight_bytes + self.num * adapter_bytes(model, self.rank)

    def room_bytes(self, model: Model, *, book: Book = AS_THEY_STAND) -> float:
        """The bytes that older versions take of the rest, if one of them is from each of the last steps."""
        if self.kept != "delta":
            return 0.0
        return sum(of_a_copy(book(CHANGED_SHARE), age) for age in self.planned_ages) * model.weight_bytes

    def describe(self, model: Model) -> str:
        """The held weights, as text."""
        weights = f"{model.weight_bytes / 1e9:.1f} GB of weights"
        match self.kept:
            case "whole":
                return f"{self.num} x {weights}"
            case "delta":
                return f"1 x {weights}, differences of {self.num - 1} older versions"
            case "adapter":
                return f"1 x {weights}, {self.num} adapters of rank {self.rank}"

    def cost(self, decode: DecodeCost, model: Model, *, book: Book = AS_THEY_STAND) -> SlotCost:
        """`decode`: the costs of the replica that holds the versions."""
        launch_s = PRODUCTS * model.num_layers * book(SMALL_LAUNCH)
        match self.kept:
            case "whole":
                return WholeCost()
            case "delta":
                return DeltaCost(
                    changed=book(CHANGED_SHARE),
                    copy_s=decode.weights_s,
                    copy_tokens=model.weight_bytes / model.kv_bytes,
                    row_s=decode.row_s * book(GEMM_SHARE) / book(SPARSE_SHARE),
                    launch_s=launch_s,
                )
            case "adapter":
                share = adapter_bytes(model, self.rank) / model.weight_bytes
                return AdapterCost(read_s=share * decode.weights_s, row_s=share * decode.row_s, launch_s=2 * launch_s)

    @property
    def planned_ages(self) -> range:
        """The ages of the older versions, if one is taken at every step."""
        return range(1, self.num)


@dataclass(frozen=True, slots=True)
class WholeCost:
    def load(self, rows: Rows) -> Load:
        return Load(weights=len(rows), launches=len(rows))

    def taken_tokens(self, ages: Iterable[int]) -> int:
        return 0

    def making_s(self, before: Iterable[int], after: Iterable[int]) -> float:
        return 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaCost:
    changed: float
    """In one step."""
    copy_s: float
    """To read a copy of the weights."""
    copy_tokens: float
    """The tokens whose keys and values take as much as a copy."""
    row_s: float
    """The arithmetic of a row, if all values differed."""
    launch_s: float

    def load(self, rows: Rows) -> Load:
        copies, overlapped_s = 1, 0.0
        for age, num in rows:
            share = of_a_copy(self.changed, age)
            if share == 1:
                copies += 1
            elif age:
                overlapped_s += self.launch_s + max(
                    share * self.copy_s, num * changed_in(self.changed, age) * self.row_s
                )
        return Load(weights=copies, launches=copies, overlapped_s=overlapped_s)

    def taken_tokens(self, ages: Iterable[int]) -> int:
        return int(self._of_a_copy(ages) * self.copy_tokens)

    def making_s(self, before: Iterable[int], after: Iterable[int]) -> float:
        """The old weights are read and the new ones written, layer by layer; so is every difference."""
        return (2 + self._of_a_copy(before) + self._of_a_copy(after)) * self.copy_s

    def _of_a_copy(self, ages: Iterable[int]) -> float:
        return sum(of_a_copy(self.changed, age) for age in ages)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterCost:
    read_s: float
    """To read one of them."""
    row_s: float
    launch_s: float

    def load(self, rows: Rows) -> Load:
        arithmetic_s = sum(num for _, num in rows) * self.row_s
        return Load(overlapped_s=self.launch_s + max(len(rows) * self.read_s, arithmetic_s))

    def taken_tokens(self, ages: Iterable[int]) -> int:
        return 0

    def making_s(self, before: Iterable[int], after: Iterable[int]) -> float:
        return 0.0
