"""Checks of an uploaded model's files: settings are JSON, and weights are well-formed safetensors.

    8 bytes: n | n bytes of JSON: name → dtype, shape, start, end | the tensors

Invariants:
- nothing is executed or unpickled; the size of what is read is checked before parsing;
- an error names the refused file and what is wrong with it.
"""

import json
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Final

from backend.assets.models import Asset, AssetFile, AssetKind
from backend.assets.places import first_bytes
from backend.assets.uploads.listing import CONFIG, INDEX
from backend.errors import FieldError, Invalid
from engine.spec.assets.asset_manifest import PART_BYTES

MOST_CONFIG_BYTES: Final = 2**20
MOST_HEADER_BYTES: Final = 8 * 2**20  # 60,000 tensors in one file; a larger one could exhaust this process' memory


class BadFile(ValueError):
    """The message names the file and the error."""


def look_into(asset: Asset) -> dict[str, Any] | None:
    """The model's config.json; None for a data set. Raises `Invalid`, `StoreError`."""
    if asset.kind != AssetKind.MODEL:
        return None
    files = {file.name: file for file in asset.files.all()}
    try:
        for file in files.values():
            _refuse(asset, file)
        if INDEX in files:
            _refuse_index(_read_document(asset, files[INDEX], most=PART_BYTES), files)
        config = _read_document(asset, files[CONFIG], most=MOST_CONFIG_BYTES)
        if not isinstance(config.get("model_type"), str):
            raise BadFile(f"{CONFIG}: model_type is missing")
    except BadFile as error:
        raise Invalid(errors=[FieldError(pointer="/files", code="format", message=str(error))]) from None
    return config


def _refuse(asset: Asset, file: AssetFile) -> None:
    if file.name.endswith(".safetensors"):
        _refuse_weights(asset, file)
    elif file.name.endswith(".json") and first_bytes(asset, file, range(64)).lstrip()[:1] != b"{":
        raise BadFile(f"{file.name}: not a JSON object")


def _refuse_weights(asset: Asset, file: AssetFile) -> None:
    length = int.from_bytes(first_bytes(asset, file, range(8)), "little")
    if not 2 <= length <= min(MOST_HEADER_BYTES, file.num_bytes - 8):
        raise BadFile(f"{file.name}: not safetensors: a header of {length} bytes in a file of {file.num_bytes}")
    header = _parse(file.name, first_bytes(asset, file, range(8, 8 + length)))
    spans = sorted(_read_span(file.name, name, entry) for name, entry in header.items() if name != "__metadata__")
    ends = [(0, 0), *spans, (file.num_bytes - 8 - length,) * 2]
    if any(before[1] != after[0] for before, after in pairwise(ends)):
        raise BadFile(f"{file.name}: its tensors overlap or do not fill the file, which may be truncated")


def _read_span(file: str, name: str, entry: Any) -> tuple[int, int]:
    match entry:
        case {"dtype": str(), "shape": [*shape], "data_offsets": [int() as start, int() as end]}:
            if 0 <= start <= end and all(isinstance(size, int) and size >= 0 for size in shape):
                return start, end
    raise BadFile(f"{file}: the tensor {name[:100]!r} has no dtype, shape and offsets")


def _refuse_index(index: Mapping[str, Any], files: Mapping[str, AssetFile]) -> None:
    names = index.get("weight_map")
    if not isinstance(names, dict) or not names:
        raise BadFile(f"{INDEX}: weight_map is missing")
    missing = sorted({str(name) for name in names.values()} - files.keys())
    if missing:
        raise BadFile(f"{INDEX}: names missing files: {', '.join(missing[:5])}")


def _read_document(asset: Asset, file: AssetFile, *, most: int) -> dict[str, Any]:
    if file.num_bytes > most:
        raise BadFile(f"{file.name} must have at most {most} bytes, has {file.num_bytes}")
    return _parse(file.name, first_bytes(asset, file, range(file.num_bytes)))


def _parse(name: str, content: bytes) -> dict[str, Any]:
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        raise BadFile(f"{name}: not JSON") from None
    if not isinstance(document, dict):
        raise BadFile(f"{name}: not a JSON object")
    return document
