"""Validation of an asset's listing, before any byte is sent: names, formats and sizes of its files. Pure.

Invariants:
- a name is a plain word without a folder, so a listing can address only files of its own asset;
- models may only have formats that are read without executing code: pickled formats are refused by name.
"""

from collections.abc import Sequence
from typing import Annotated, Final

from pydantic import Field

from backend.assets.models import AssetKind
from backend.errors import FieldError, Invalid
from engine.spec.assets.asset_manifest import FileName
from engine.spec.strict import Strict

MOST_FILES: Final = 10_000
MOST_BYTES: Final = 2**40  # a listing of one file of 1 TiB is 65,536 parts; a trillion weights are two of these
SUFFIXES: Final = {
    AssetKind.DATA: (".jsonl", ".ndjson", ".json", ".parquet", ".arrow", ".feather", ".txt", ".md"),
    AssetKind.MODEL: (".safetensors", ".json", ".jinja", ".model", ".txt", ".md"),
}
PICKLES: Final = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".msgpack", ".h5", ".npy", ".npz")
CONFIG: Final = "config.json"
TOKENIZER: Final = "tokenizer.json"
WEIGHTS: Final = "model.safetensors"
INDEX: Final = "model.safetensors.index.json"


class ListedFile(Strict):
    name: FileName
    num_bytes: Annotated[int, Field(ge=1, le=MOST_BYTES)]


def refuse_listing(kind: str, files: Sequence[ListedFile]) -> None:
    """Raises `Invalid`, with all errors at once."""
    errors = [*_find_bad_suffixes(AssetKind(kind), files), *_find_repeats(files)]
    if sum(file.num_bytes for file in files) > MOST_BYTES:
        errors.append(_make_error("/files", "too_large", f"must have at most {MOST_BYTES} bytes in total"))
    if kind == AssetKind.MODEL:
        errors += _find_missing({file.name for file in files})
    if errors:
        raise Invalid(errors=errors)


def _find_bad_suffixes(kind: AssetKind, files: Sequence[ListedFile]) -> list[FieldError]:
    allowed = SUFFIXES[kind]
    errors = []
    for at, file in enumerate(files):
        if file.name.lower().endswith(PICKLES):
            message = f"{file.name}: loading this format may run code. Use .safetensors for weights"
        elif not file.name.endswith(allowed) and not (kind == AssetKind.DATA and "." not in file.name):
            message = f"{file.name}: files of {_name_kind(kind)} must end in one of {', '.join(allowed)}"
        else:
            continue
        errors.append(_make_error(f"/files/{at}/name", "format", message))
    return errors


def _find_repeats(files: Sequence[ListedFile]) -> list[FieldError]:
    """Names that differ only in case would collide on some file systems."""
    seen: set[str] = set()
    errors = []
    for at, file in enumerate(files):
        if file.name.lower() in seen:
            errors.append(_make_error(f"/files/{at}/name", "repeated", f"{file.name} is listed twice"))
        seen.add(file.name.lower())
    return errors


def _find_missing(names: set[str]) -> list[FieldError]:
    required = [name for name in (CONFIG, TOKENIZER) if name not in names]
    if not names & {WEIGHTS, INDEX}:
        required.append(f"{WEIGHTS}, or {INDEX} with its files")
    return [_make_error("/files", "missing", f"a model needs {name}") for name in required]


def _name_kind(kind: AssetKind) -> str:
    return "a model" if kind == AssetKind.MODEL else "a data set"


def _make_error(pointer: str, code: str, message: str) -> FieldError:
    return FieldError(pointer=pointer, code=code, message=message)
