"""The manifest of an asset, a data set or a model that somebody uploaded or registered: its files, and their parts.

    file    0 ............ 16 MiB ............ 32 MiB .... end
    parts   |   sha256 of 0   |   sha256 of 1    |  of 2  |

A client, the control plane and every node compute the same: what was sent is what is stored is what is trained on.

Invariants:
- a name is plain and in no folder, so that a manifest can never lead outside of its own;
- every part of a file but its last has PART_BYTES, so the same content always has the same digest;
- the digest names the whole: an order, a size or a byte that differs makes another one.
"""

import hashlib
from typing import Annotated, Final, Self

from pydantic import Field, model_validator

from engine.spec.strict import Strict

PART_BYTES: Final = 16 * 2**20
"""Small enough that a web process holds several at once and a cut connection costs seconds, large enough that 100 GB
are 6,000 requests."""

RANGE: Final = "Laminar-Range"
"""A header beside a link: the bytes of what it leads to that are the part, as a Range header says them."""

FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,199}$")]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class ManifestFile(Strict):
    name: FileName
    num_bytes: int = Field(ge=1)
    parts: list[Sha256]

    @model_validator(mode="after")
    def _has_all_parts(self) -> Self:
        if len(self.parts) != num_parts(self.num_bytes):
            raise ValueError(f"{self.name}: {self.num_bytes} bytes are {num_parts(self.num_bytes)} parts")
        return self


class AssetManifest(Strict):
    files: list[ManifestFile] = Field(min_length=1)
    """By name."""

    @model_validator(mode="after")
    def _is_in_order(self) -> Self:
        names = [file.name for file in self.files]
        if names != sorted(set(names)):
            raise ValueError("files stand in the order of their names, each once")
        return self

    @property
    def num_bytes(self) -> int:
        return sum(file.num_bytes for file in self.files)

    @property
    def sha256(self) -> str:
        """Of a line for each file: its name, its size and the hashes of its parts, with blanks between."""
        told = hashlib.sha256()
        for file in self.files:
            told.update(f"{file.name} {file.num_bytes} {' '.join(file.parts)}\n".encode())
        return told.hexdigest()


def num_parts(num_bytes: int) -> int:
    return -(-num_bytes // PART_BYTES)


def part_bytes(num_bytes: int, number: int) -> int:
    """Of a part of a file of so many bytes."""
    return min(PART_BYTES, num_bytes - number * PART_BYTES)
