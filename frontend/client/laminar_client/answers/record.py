"""The base of all responses: a frozen dataclass that also keeps its JSON document."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, kw_only_default=True)
def record(kind: type[T]) -> type[T]:
    make: Callable[[type[T]], type[T]] = dataclass(frozen=True, kw_only=True, slots=True)
    return make(kind)


@record
class Answer:
    raw: Mapping[str, Any] = field(repr=False, compare=False)


@record
class Named(Answer):
    id: str
    name: str
