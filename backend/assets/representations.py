"""REST representations of assets."""

from datetime import datetime
from typing import Annotated, Literal, Self

from pydantic import BaseModel, Field

from backend.assets.models import Asset, AssetFile, AssetState
from backend.assets.selectors import received_parts
from backend.assets.storage import Storage
from backend.assets.uploads.listing import MOST_FILES, ListedFile
from engine.spec.assets.asset_manifest import Sha256, num_parts
from engine.spec.strict import Strict, Text

Kind = Literal["data", "model"]
AssetName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$", description="Name used in specs.")]


class BeginUpload(Strict):
    kind: Kind
    name: AssetName
    files: Annotated[list[ListedFile], Field(min_length=1, max_length=MOST_FILES)]
    project: Annotated[Text, Field(min_length=1, max_length=64)] | None = Field(
        None, description="Id of the project whose jobs may use it. Default: all projects of the team."
    )


class CompleteUpload(Strict):
    num_bytes: int = Field(ge=1, le=2**60, description="Total size of all files.")
    sha256: Sha256 = Field(
        description="Of one line per file, sorted by name: name, size and the sha256 of every part of 16 MiB, "
        "separated by spaces and ended by a newline."
    )


class ChangeStorage(Strict):
    max_bytes: int | None = Field(ge=0, le=2**60, description="Null: the site's default.")


class AssetOut(BaseModel):
    id: str
    kind: Kind
    name: str
    version: int | None = Field(description="Null until the asset is ready.")
    reference: str | None = Field(description="How a spec names exactly this version.")
    state: AssetState
    project: str | None
    is_shared: bool = Field(description="Whether an operator registered it for all teams.")
    num_bytes: int
    num_files: int
    num_parts: int
    received_parts: int = Field(description="Parts of an unfinished upload received so far.")
    sha256: str | None = Field(description="Digest of its manifest, which nodes verify.")
    created_at: datetime
    created_by: str
    ready_at: datetime | None
    expires_at: datetime | None = Field(description="When an unfinished upload is abandoned unless a part arrives.")

    @classmethod
    def of(cls, asset: Asset) -> Self:
        return cls(
            id=asset.pk,
            kind="model" if asset.kind == "model" else "data",
            name=asset.name,
            version=asset.version,
            reference=None if asset.version is None else f"{asset.name}@{asset.version}",
            state=AssetState(asset.state),
            project=asset.project_id,
            is_shared=asset.team_id is None,
            num_bytes=asset.num_bytes,
            num_files=asset.num_files,
            num_parts=asset.num_parts,
            received_parts=received_parts(asset) if asset.state == AssetState.UPLOADING else asset.num_parts,
            sha256=asset.sha256 or None,
            created_at=asset.created_at,
            created_by="operator" if asset.team_id is None else asset.created_by,
            ready_at=asset.ready_at,
            expires_at=asset.expires_at,
        )


class AssetFileOut(BaseModel):
    number: int = Field(description="Number in the URL of its parts.")
    name: str
    num_bytes: int
    parts: list[str | None] = Field(description="The sha256 of each part. Null: not received yet.")

    @classmethod
    def of(cls, file: AssetFile) -> Self:
        received = {part.number: part.sha256 for part in file.parts.all()}
        parts = [received.get(number) for number in range(num_parts(file.num_bytes))]
        return cls(number=file.number, name=file.name, num_bytes=file.num_bytes, parts=parts)


class StorageOut(BaseModel):
    used_bytes: int
    max_bytes: int

    @classmethod
    def of(cls, storage: Storage) -> Self:
        return cls(used_bytes=storage.used_bytes, max_bytes=storage.max_bytes)
