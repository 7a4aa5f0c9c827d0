"""Assets, as programs see them."""

from datetime import datetime
from typing import Annotated, Literal, Self

from pydantic import BaseModel, Field

from backend.assets.models import Asset, AssetFile, AssetState
from backend.assets.selectors import received_parts
from backend.assets.storage import Storage
from backend.assets.uploads.listing import MOST_FILES, ListedFile
from engine.spec.asset_manifest import Sha256, num_parts
from engine.spec.strict import Strict, Text

Kind = Literal["data", "model"]
AssetName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$", description="As a spec will say it.")]


class BeginUpload(Strict):
    kind: Kind
    name: AssetName
    files: Annotated[list[ListedFile], Field(min_length=1, max_length=MOST_FILES)]
    project: Annotated[Text, Field(min_length=1, max_length=64)] | None = Field(
        None, description="Its id: for jobs of this project alone. Without one, for all of the team's."
    )


class CompleteUpload(Strict):
    num_bytes: int = Field(ge=1, le=2**60, description="Of all files together.")
    sha256: Sha256 = Field(
        description="Of a line for each file, in the order of their names: name, size and the sha256 of every part of "
        "16 MiB, with blanks between, and a newline."
    )


class ChangeStorage(Strict):
    max_bytes: int | None = Field(ge=0, le=2**60, description="Null: what every team of this site may keep.")


class AssetOut(BaseModel):
    id: str
    kind: Kind
    name: str
    version: int | None = Field(description="Null until it is ready.")
    reference: str | None = Field(description="As a spec names it, this version and no other.")
    state: AssetState
    project: str | None
    is_shared: bool = Field(description="An operator registered it for everybody.")
    num_bytes: int
    num_files: int
    num_parts: int
    received_parts: int = Field(description="Of an upload that goes on: those that are there.")
    sha256: str | None = Field(description="Of its manifest; what jobs are told and nodes verify.")
    created_at: datetime
    created_by: str
    ready_at: datetime | None
    expires_at: datetime | None = Field(description="Of an upload: given up if nothing more comes until then.")

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
    number: int = Field(description="As the address of its parts has it.")
    name: str
    num_bytes: int
    parts: list[str | None] = Field(description="The sha256 of each part; null: it has not come yet.")

    @classmethod
    def of(cls, file: AssetFile) -> Self:
        there = {part.number: part.sha256 for part in file.parts.all()}
        parts = [there.get(number) for number in range(num_parts(file.num_bytes))]
        return cls(number=file.number, name=file.name, num_bytes=file.num_bytes, parts=parts)


class StorageOut(BaseModel):
    used_bytes: int
    max_bytes: int

    @classmethod
    def of(cls, storage: Storage) -> Self:
        return cls(used_bytes=storage.used_bytes, max_bytes=storage.max_bytes)
