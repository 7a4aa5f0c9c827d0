"""All input has one of the border types: a route, page or cursor with a raw id, time or number fails here.

The first test reads the parameters of every operation as ninja holds them, down to the last field of each body.
"""

import ast
from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pytest
from django.urls import URLPattern, get_resolver
from ninja import NinjaAPI
from pydantic import AfterValidator, AwareDatetime, BaseModel
from pydantic.fields import FieldInfo

from backend.borders import types
from backend.borders.converters import CONVERTERS
from backend.rest import api
from backend.telemetry.intake.internal_api import internal_api
from engine.spec import strict

ROOT = Path(__file__).resolve().parents[3]
CHECKED_LATER = {
    "RetryJob.changes": "merged into the spec, which is read as a whole",
}
"""Where any text is accepted, and why."""


def functions_among(metadata: list[Any]) -> set[Any]:
    return {each.func for each in metadata if isinstance(each, AfterValidator)}


def flat(metadata: Any) -> list[Any]:
    return [one for each in metadata for one in (flat(each.metadata) if isinstance(each, FieldInfo) else [each])]


def bounds(metadata: list[Any], *names: str) -> list[Any]:
    return [bound for each in metadata for name in names if (bound := getattr(each, name, None)) is not None]


def has(metadata: list[Any], name: str) -> bool:
    return any(getattr(each, name, None) is not None for each in metadata)


def faults(kind: Any, metadata: list[Any], place: str, *, in_body: bool) -> Iterator[str]:
    """Faults of an input type, down to its leaves."""
    origin = get_origin(kind)
    if place in CHECKED_LATER:
        return
    if origin is Annotated:
        inner, *more = get_args(kind)
        yield from faults(inner, [*flat(more), *metadata], place, in_body=in_body)
    elif origin in (Union, UnionType, list, tuple, set, dict):
        for inner in get_args(kind):
            own = metadata if origin in (Union, UnionType) else [True in metadata]
            yield from faults(inner, own, place, in_body=in_body)
    elif origin is Literal or kind in (NoneType, bool, Ellipsis):
        return
    elif isinstance(kind, type) and issubclass(kind, BaseModel):
        for name, field in kind.model_fields.items():
            where = f"{kind.__name__}.{name}"
            finite = not kind.model_config.get("allow_inf_nan", True)
            yield from faults(field.annotation, [*flat(field.metadata), finite], where, in_body=in_body)
    elif isinstance(kind, type) and issubclass(kind, Enum):
        return
    elif kind in LEAVES:
        if fault := LEAVES[kind](metadata, in_body):
            yield f"{place}: {fault}"
    else:
        yield f"{place}: {kind} is none of our types"


def _time(metadata: list[Any], in_body: bool) -> str:
    is_ours = {strict.within_calendar, strict._clamp} & functions_among(metadata)
    return "" if is_ours else "a raw datetime; use Moment"


def _day(metadata: list[Any], in_body: bool) -> str:
    return "" if types._day_within_calendar in functions_among(metadata) else "a raw date; use Day"


def _number(metadata: list[Any], in_body: bool) -> str:
    low, high = bounds(metadata, "ge", "gt"), bounds(metadata, "le", "lt")
    fits = low and high and max(low) >= -(2**63) and min(high) <= 2**63 - 1
    return "" if fits else "an int beyond what the database holds; give it bounds, or use Count"


def _fraction(metadata: list[Any], in_body: bool) -> str:
    bounded = bounds(metadata, "ge", "gt") and bounds(metadata, "le", "lt")
    return "" if bounded or True in metadata or has(metadata, "allow_inf_nan") else "a float that may be NaN"


def _text(metadata: list[Any], in_body: bool) -> str:
    functions = functions_among(metadata)
    if has(metadata, "pattern") or types._named_in_a_path in functions:
        return ""
    if strict._without_control_characters not in functions:
        return "a raw str; use Id, PathId, OneLine or Text"
    return "" if in_body or has(metadata, "max_length") else "a text of any length"


LEAVES = {
    datetime: _time,
    AwareDatetime: _time,
    date: _day,
    int: _number,
    float: _fraction,
    Decimal: _fraction,
    str: _text,
}


@cache
def operations(which: NinjaAPI) -> list[tuple[str, Any]]:
    return [
        (f"{'/'.join(operation.methods)} {path}", operation)
        for _, router in which._routers
        for path, view in router.path_operations.items()
        for operation in view.operations
    ]


@pytest.mark.parametrize("which", [api, internal_api], ids=["public", "internal"])
def test_no_route_takes_a_raw_id_time_or_number(which: NinjaAPI) -> None:
    lacking = []
    for label, operation in operations(which):
        for model in operation.models:
            in_body = model.__ninja_param_source__ == "body"
            for name, field in model.model_fields.items():
                messages = faults(field.annotation, flat(field.metadata), f"{label} {name}", in_body=in_body)
                lacking += [f"{label} → {each}" for each in messages]
    assert len(operations(which)) > 1
    assert not lacking, "\n".join(sorted(set(lacking)))


def patterns(resolver: Any) -> Iterator[URLPattern]:
    for each in resolver.url_patterns:
        if isinstance(each, URLPattern):
            yield each
        else:
            yield from patterns(each)


MAY_BE_RAW = {"provider_id": "compared with the name of the one provider"}


def test_no_page_takes_a_raw_part_of_its_address() -> None:
    ours = tuple(CONVERTERS.values())
    raw = [
        f"{pattern.pattern} takes {name}"
        for pattern in patterns(get_resolver())
        if getattr(pattern.callback, "__module__", "").startswith("backend.")
        for name, converter in pattern.pattern.converters.items()
        if not isinstance(converter, ours) and name not in MAY_BE_RAW
    ]
    assert not raw, raw


READS_TIMES = {"fromisoformat", "strptime", "parse_datetime", "parse_date"}
MAY_READ_TIMES = {
    "backend/borders/types.py": "here it is done for all",
    "backend/telemetry/logs/batches.py": "it reads what it wrote itself",
}


def calls(path: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            yield name, node.lineno


def test_times_are_read_in_one_place() -> None:
    lacking = [
        f"{name}:{line} {call}"
        for path in sorted((ROOT / "backend").rglob("*.py"))
        if (name := str(path.relative_to(ROOT))) not in MAY_READ_TIMES
        for call, line in calls(path)
        if call in READS_TIMES
    ]
    assert not lacking, lacking


def test_no_page_reads_a_number_by_itself() -> None:
    """`int("9" * 5000)` raises, and 2**63 exceeds the database's integers: `read_count` returns None for both."""
    lacking = [
        f"{path.name}:{line}"
        for path in sorted((ROOT / "backend" / "pages").glob("*.py"))
        if "request.GET" in path.read_text() or "request.POST" in path.read_text()
        for call, line in calls(path)
        if call in {"int", "float"}
    ]
    assert not lacking, lacking
