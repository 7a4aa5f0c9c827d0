"""The names of everything that a release understands in facts, and facts reduced to the names of another release.

    step_trained                         a kind
    step_trained.ledger                  a field; of nested messages too: trajectories_sampled.trajectories.turns.tool
    run_finished.failure_class=memory    a value of a closed list

Invariants:
- each name that is left out is returned;
- an optional field is left out alone; an entry of a list, or a whole fact, is left out with a required value that is
  unknown. The fact's place is kept by one of the kind `unknown`, so that numbers have no gap;
- the names inside open maps (metrics, ledgers) belong to no vocabulary.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from pydantic import BaseModel

KIND: Final = re.compile(r"[a-z]+(_[a-z]+)*", re.ASCII)
KIND_FIELD: Final = "type"
Document = Mapping[str, Any]
Models = Mapping[str, type[BaseModel]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldShape:
    model: type[BaseModel] | None
    """Of the field, or of each entry of its list."""
    choices: frozenset[str]
    """The closed list of its values; empty: any value."""
    is_required: bool


def names_of(models: Models) -> frozenset[str]:
    return frozenset(name for kind, model in models.items() for name in (kind, *_names_below(kind, model)))


def digest_of(names: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(sorted(names)).encode()).hexdigest()[:16]


def reduce_body(body: Document, models: Models, known: Set[str] | None = None) -> tuple[Document, list[str]]:
    """The part of a fact's body that has names in `models` and `known`, and the names left out.
    A body without a kind, or with an impossible one, is returned as it is: its reader refuses it."""
    kind = body.get(KIND_FIELD)
    if not isinstance(kind, str) or not KIND.fullmatch(kind):
        return body, []
    left: list[str] = []
    if kind in models and _is_known(kind, known):
        reduced = _reduced(body, models[kind], kind, known, left)
        if reduced is not None:
            return reduced, left
    return {KIND_FIELD: "unknown", "kind": kind}, [*left, kind]


def needed_of(needs: Iterable[str], left: Iterable[str]) -> list[str]:
    """The names among those left out without which a fact must not be stored."""
    needed = set(needs)
    return [name for name in left if name.partition("=")[0] in needed or any(_is_in(need, name) for need in needed)]


def _is_in(need: str, name: str) -> bool:
    return need.startswith(f"{name}.")


def _reduced(
    document: Document, model: type[BaseModel], name: str, known: Set[str] | None, left: list[str]
) -> Document | None:
    """None: without an unknown value the message would lack a required field."""
    kept: dict[str, Any] = {}
    shape = _shape_of(model)
    for key, value in document.items():
        below, field = f"{name}.{key}", shape.get(key)
        if key == KIND_FIELD and "." not in name:
            kept[key] = value
        elif field is None or not _is_known(below, known):
            left.append(below)
        elif field.choices and isinstance(value, str):
            choice = f"{below}={value}"
            if value in field.choices and _is_known(choice, known):
                kept[key] = value
                continue
            left.append(choice)
            if field.is_required:
                return None
        elif field.model is not None and isinstance(value, dict):
            part = _reduced(value, field.model, below, known, left)
            if part is not None:
                kept[key] = part
            elif field.is_required:
                return None
        elif field.model is not None and isinstance(value, list):
            kept[key] = [part for each in value if (part := _entry(each, field.model, below, known, left)) is not None]
        else:
            kept[key] = value
    return kept


def _entry(each: Any, model: type[BaseModel], name: str, known: Set[str] | None, left: list[str]) -> Any:
    return _reduced(each, model, name, known, left) if isinstance(each, dict) else each


def _is_known(name: str, known: Set[str] | None) -> bool:
    return known is None or name in known


def _names_below(name: str, model: type[BaseModel]) -> Iterator[str]:
    for key, field in _shape_of(model).items():
        below = f"{name}.{key}"
        if key == KIND_FIELD and "." not in name:
            continue
        yield below
        yield from (f"{below}={choice}" for choice in field.choices)
        if field.model is not None:
            yield from _names_below(below, field.model)


@cache
def _shape_of(model: type[BaseModel]) -> Mapping[str, FieldShape]:
    shape = {}
    for key, field in model.model_fields.items():
        plain = _plain(field.annotation)
        is_model = isinstance(plain, type) and issubclass(plain, BaseModel)
        shape[key] = FieldShape(
            model=plain if is_model else None, choices=_choices_of(plain), is_required=field.is_required()
        )
    return shape


def _plain(annotation: Any) -> Any:
    """The type of a value, or of the entries of a list: without `Annotated`, `| None` and `list`."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated or origin is list:
        return _plain(arguments[0])
    if origin in (Union, UnionType):
        types = [each for each in arguments if each is not NoneType]
        return _plain(types[0]) if len(types) == 1 else annotation
    return annotation


def _choices_of(plain: Any) -> frozenset[str]:
    if get_origin(plain) is Literal:
        return frozenset(each for each in get_args(plain) if isinstance(each, str))
    if isinstance(plain, type) and issubclass(plain, Enum):
        return frozenset(str(each.value) for each in plain)
    return frozenset()
