"""The manifest of an asset (an uploaded or registered data set or model): its files and their parts.

    file    0 ............ 16 MiB ............ 32 MiB .... end
    parts   |   sha256 of 0   |   sha256 of 1    |  of 2  |

Client, control plane and nodes compute the same digest, so the uploaded, stored and trained-on bytes are the same.

Invariants:
- a file name has no folder, so that a manifest can never lead outside its own folder;
- every part of a file but the last has PART_BYTES, so the same content always has the same digest;
- the digest covers everything: a different order, size or byte gives another digest.
"""

import hashlib
from typing import Annotated, Final, Self

from pydantic import Field, model_validator

from engine.spec.strict import Strict

PART_BYTES: Final = 16 * 2**20
"""Small enough that a web process holds several at once and a lost connection costs seconds, large enough that 100 GB
are 6,000 requests."""

RANGE: Final = "Laminar-Range"
"""A response header sent with a link: the part's bytes within the linked object, in the syntax of a Range header."""

FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,199}$")]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class ManifestFile(Strict):
    name: FileName
    num_bytes: int = Field(ge=1)
    parts: list[Sha256]

    @model_validator(mode="after")
    def _has_all_parts(self) -> Self:
        if len(self.parts) != num_parts(self.num_bytes):
            raise ValueError(f"{self.name}: {self.num_bytes} bytes need {num_parts(self.num_bytes)} parts")
        return self


class AssetManifest(Strict):
    files: list[ManifestFile] = Field(min_length=1)
    """Sorted by name."""

    @model_validator(mode="after")
    def _is_in_order(self) -> Self:
        names = [file.name for file in self.files]
        if names != sorted(set(names)):
            raise ValueError("files must be sorted by name, without duplicates")
        return self

    @property
    def num_bytes(self) -> int:
        return sum(file.num_bytes for file in self.files)

    @property
    def sha256(self) -> str:
        """The hash of one line per file: its name, size and the hashes of its parts, separated by spaces."""
        digest = hashlib.sha256()
        for file in self.files:
            digest.update(f"{file.name} {file.num_bytes} {' '.join(file.parts)}\n".encode())
        return digest.hexdigest()


def num_parts(num_bytes: int) -> int:
    return -(-num_bytes // PART_BYTES)


def part_bytes(num_bytes: int, number: int) -> int:
    """The size of part `number` of a file of `num_bytes`."""
    return min(PART_BYTES, num_bytes - number * PART_BYTES)
