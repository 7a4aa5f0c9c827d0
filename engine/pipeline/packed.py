"""Packed sequences of numbers: the per-token data of a trajectory.

A Python number takes 32 bytes and is pickled and freed on its own; a packed one takes four bytes or one.

Invariants:
- little-endian, like every machine that this runs on;
- a list of numbers validates too: recordings of brains hold lists.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, Self, TypeVar, overload

from pydantic_core import CoreSchema, core_schema

Number = TypeVar("Number", int, float, bool)


class Packed(Sequence[Number]):
    code: ClassVar[str]
    """Format code of one number, as in `struct`."""
    __slots__ = ("data",)

    def __init__(self, data: bytes = b"") -> None:
        self.data = data

    @classmethod
    def of(cls, numbers: Iterable[Number]) -> Self:
        return cls(array(cls.code, numbers).tobytes())

    @property
    def view(self) -> "memoryview[Any]":
        return memoryview(self.data).cast("B").cast(self.code)  # type: ignore[call-overload, no-any-return]

    def first(self, num: int) -> Self:
        return type(self)(self.data[: num * self.view.itemsize]) if len(self) > num else self

    def __len__(self) -> int:
        return len(self.view)

    @overload
    def __getitem__(self, at: int) -> Number: ...

    @overload
    def __getitem__(self, at: slice) -> tuple[Number, ...]: ...

    def __getitem__(self, at: int | slice) -> Number | tuple[Number, ...]:
        item: Any = self.view[at]
        return tuple(item) if isinstance(at, slice) else item

    def __iter__(self) -> Iterator[Number]:
        return iter(self.view)

    def __eq__(self, other: object) -> bool:
        return self.data == other.data if isinstance(other, type(self)) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.data)

    def __repr__(self) -> str:
        return f"{type(self).__name__}.of({list(self)})"

    def __reduce__(self) -> tuple[type[Self], tuple[bytes]]:
        return type(self), (self.data,)

    # Validation
    # ---------------------------------------------------------------------------------------------------------

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: object) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(cls._read)

    @classmethod
    def _read(cls, value: Any) -> Self:
        if isinstance(value, cls):
            return value
        return cls(value) if isinstance(value, bytes) else cls.of(value)


class Ints(Packed[int]):
    code = "i"


class Floats(Packed[float]):
    code = "f"


class Marks(Packed[bool]):
    code = "?"

    @classmethod
    def of(cls, numbers: Iterable[bool]) -> Self:
        return cls(bytes(map(bool, numbers)))


class Bytes(Packed[int]):
    code = "B"
