"""Messages between driver and control plane, as the schemas of one release; and what a later one may not change.

python -m tests.backend.upgrade.wire VERSION     writes this release's, once, at its release
"""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel

from engine.spec.control import AttemptOrder, FactAck, FactBatch, Heartbeat, HeartbeatReply, Vocabulary

Schema = Mapping[str, Any]
TO_CONTROL: Final[tuple[type[BaseModel], ...]] = (FactBatch, Heartbeat)
"""A driver sends it, and may be older or newer."""
TO_DRIVER: Final[tuple[type[BaseModel], ...]] = (FactAck, HeartbeatReply, Vocabulary, AttemptOrder)
FOLDER: Final = Path(__file__).parent
# A list of choices may grow only if its reader passes over unknown values.
_KINDS: Final = frozenset({"Fact.body", "ControlRequest.kind"})
_PASSES_OVER_VALUES: Final = FactBatch.__name__


def present() -> dict[str, Schema]:
    return {model.__name__: model.model_json_schema() for model in (*TO_CONTROL, *TO_DRIVER)}


def breaks(before: Schema, now: Schema) -> Iterator[str]:
    """Messages or fields of an older peer that are now refused or missing."""
    then, later = _models(before), _models(now)
    may_grow = before["title"] == _PASSES_OVER_VALUES
    for name, model in then.items():
        if name not in later:
            yield f"{name} is gone"
            continue
        if may_grow:
            yield from _breaks_of(name, model, _without_new_choices(model, later[name]))
        else:
            yield from _breaks_of(name, model, later[name])


def _without_new_choices(before: Any, now: Any) -> Any:
    """The present schema, with each closed list cut to the choices that it had."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        cut = {key: _without_new_choices(before.get(key), value) for key, value in now.items()}
        if {*before.get("enum", ())} <= {*now.get("enum", ())} and "enum" in before:
            cut["enum"] = before["enum"]
        return cut
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        return [_without_new_choices(*pair) for pair in zip(before, now, strict=True)]
    return now


def _breaks_of(name: str, before: Schema, now: Schema) -> Iterator[str]:
    if before.get("enum") != now.get("enum"):
        yield f"{name} was {before.get('enum')} and is {now.get('enum')}"
    fields, kept = before.get("properties", {}), now.get("properties", {})
    for field in fields.keys() - kept.keys():
        yield f"{name}.{field} is gone"
    for field in set(now.get("required", ())) - set(before.get("required", ())):
        yield f"{name}.{field} is required, and an earlier release does not send it"
    for field in set(before.get("required", ())) - set(now.get("required", ())):
        yield f"{name}.{field} may be omitted, and an earlier release requires it"
    for field in fields.keys() & kept.keys():
        was, is_now = _bare(fields[field]), _bare(kept[field])
        if was != is_now and f"{name}.{field}" not in _KINDS:
            yield f"{name}.{field} was {json.dumps(was)} and is {json.dumps(is_now)}"


def _models(schema: Schema) -> dict[str, Schema]:
    return {**schema.get("$defs", {}), schema["title"]: schema}


def _bare(schema: Any) -> Any:
    """Without descriptions and defaults: each side has its own."""
    if isinstance(schema, Mapping):
        return {key: _bare(value) for key, value in schema.items() if key not in {"title", "description", "default"}}
    return [_bare(value) for value in schema] if isinstance(schema, list) else schema


if __name__ == "__main__":
    (FOLDER / f"wire-{sys.argv[1]}.json").write_text(json.dumps(present(), indent=1, sort_keys=True) + "\n")
