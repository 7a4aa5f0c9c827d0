"""The data sets and models that a spec names, and where in it.

Both planes read it: the control plane, which looks each name up among a team's and says which version was found; and
the engine, which puts in its place where that version lies on the node.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from engine.spec.environment_params import files_of
from engine.spec.job import JobSpec

AssetKind = Literal["data", "model"]
BUILT_IN_MODELS: Final[Mapping[str, str]] = {
    "demo": "Adds up, one sum after the other, and makes mistakes. 0.2 million weights; it was made for trying things.",
}
BUILT_IN_DATA: Final[Mapping[str, str]] = {
    "demo/sums": "600 sums with their results, in the words of the model demo.",
}
"""With a slash, which no name of a team's has: whatever a team uploads, its name leads to it."""
_REFERENCE: Final = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,99})(?:@([1-9][0-9]{0,8}))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedAsset:
    pointer: str
    """Into the spec."""
    kind: AssetKind
    said: str


def named_assets(spec: JobSpec) -> list[NamedAsset]:
    """Those that are not built in."""
    models = {"/model/source": spec.model.source, "/algorithm/teacher/source": spec.algorithm.teacher.source}
    found = [
        NamedAsset(pointer=pointer, kind="model", said=said)
        for pointer, said in models.items()
        if said and said not in BUILT_IN_MODELS
    ]
    params = spec.environment.params
    return found + [
        NamedAsset(pointer=f"/environment/params/{key}", kind="data", said=str(params[key]))
        for key in files_of(spec.environment.name)
        if params.get(key, "") not in ("", *BUILT_IN_DATA)
    ]


def reference_of(said: str) -> tuple[str, int | None] | None:
    """`NAME@3` is a version, `NAME` the newest; None: neither."""
    found = _REFERENCE.fullmatch(said)
    return None if found is None else (found[1], int(found[2]) if found[2] else None)


def saying(spec: JobSpec, instead: Mapping[str, str]) -> JobSpec:
    """The spec with other words at these pointers."""
    changed: Any = spec
    for pointer, said in instead.items():
        changed = _changed(changed, pointer.strip("/").split("/"), said)
    assert isinstance(changed, JobSpec)
    return changed


def _changed(node: Any, way: list[str], said: str) -> Any:
    if not way:
        return said
    first, *rest = way
    if isinstance(node, Mapping):
        return {**node, first: _changed(node[first], rest, said)}
    return node.model_copy(update={first: _changed(getattr(node, first), rest, said)})
