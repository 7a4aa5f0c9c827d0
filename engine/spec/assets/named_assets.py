"""The data sets and models that a spec names, with their paths in it.

Both planes use this module: the control plane resolves each name to a version among a team's assets, and the engine
replaces each name by the location of that version on the node.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from engine.spec.environments.params import files_of
from engine.spec.job import JobSpec

AssetKind = Literal["data", "model"]
BUILT_IN_MODELS: Final[Mapping[str, str]] = {
    "demo": "A small model with 0.2 million weights that adds numbers, with mistakes. For a first try.",
}
BUILT_IN_DATA: Final[Mapping[str, str]] = {
    "demo/sums": "600 sums with their results, in the format of the model demo.",
}
"""These names have a slash, which a team's names cannot have: no upload can be hidden by a built-in name."""
_REFERENCE: Final = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,99})(?:@([1-9][0-9]{0,8}))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedAsset:
    pointer: str
    """A JSON pointer into the spec."""
    kind: AssetKind
    name: str


def named_assets(spec: JobSpec) -> list[NamedAsset]:
    """The assets that the spec names, without the built-in ones."""
    sources = {"/model/source": spec.model.source, "/algorithm/teacher/source": spec.algorithm.teacher.source}
    models = [
        NamedAsset(pointer=pointer, kind="model", name=name)
        for pointer, name in sources.items()
        if name and name not in BUILT_IN_MODELS
    ]
    params = spec.environment.params
    return models + [
        NamedAsset(pointer=f"/environment/params/{key}", kind="data", name=str(params[key]))
        for key in files_of(spec.environment.name)
        if params.get(key, "") not in ("", *BUILT_IN_DATA)
    ]


def reference_of(text: str) -> tuple[str, int | None] | None:
    """Parses a reference: `NAME@3` is a version, `NAME` the newest; None: malformed."""
    match = _REFERENCE.fullmatch(text)
    return None if match is None else (match[1], int(match[2]) if match[2] else None)


def with_references(spec: JobSpec, instead: Mapping[str, str]) -> JobSpec:
    """The spec with the values at these pointers replaced."""
    changed: Any = spec
    for pointer, value in instead.items():
        changed = _replace_at(changed, pointer.strip("/").split("/"), value)
    assert isinstance(changed, JobSpec)
    return changed


def _replace_at(node: Any, keys: list[str], value: str) -> Any:
    if not keys:
        return value
    first, *rest = keys
    if isinstance(node, Mapping):
        return {**node, first: _replace_at(node[first], rest, value)}
    return node.model_copy(update={first: _replace_at(getattr(node, first), rest, value)})
