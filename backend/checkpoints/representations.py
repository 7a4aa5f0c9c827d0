"""REST representations of checkpoints and models."""

from datetime import datetime
from typing import Any, Self

from django.db.models import Manager
from pydantic import BaseModel, ConfigDict, Field, field_validator

from backend.api.etags import etag_of
from backend.checkpoints.models import (
    Checkpoint,
    CheckpointEvaluation,
    CheckpointState,
    ModelVersion,
    RegisteredModel,
    Retention,
)
from engine.spec.for_tenants import place_in_store


class EvaluationOut(BaseModel):
    """The result of a job that only evaluates the checkpoint."""

    model_config = ConfigDict(from_attributes=True)

    job: str = Field(validation_alias="job_id")
    at: datetime
    environment: str
    prompts: int = Field(validation_alias="num_prompts", description="Prompts sampled and graded.")
    samples: int = Field(validation_alias="num_samples", description="k: samples per prompt.")
    reward_mean: float = Field(description="avg@k: mean over prompts of each prompt's mean reward.")
    reward_std: float = Field(description="Standard deviation of the prompts' mean rewards.")
    reward_error: float = Field(description="Standard error of reward_mean, over prompts.")
    pass_rate: float | None = Field(
        description="pass@k: share of prompts with a sample whose reward is at least evaluation.pass_mark."
    )
    pass_error: float = Field(description="Standard error of pass_rate, over prompts.")
    length_mean: float = Field(description="Mean number of tokens per sample.")

    @classmethod
    def of(cls, evaluation: CheckpointEvaluation) -> Self:
        return cls.model_validate(evaluation)


class CheckpointOut(BaseModel):
    model_config = ConfigDict(from_attributes=True)

    id: str
    job: str = Field(validation_alias="job_id")
    attempt: int
    step: int
    version: int
    state: CheckpointState
    message: str = Field(description="Why it is corrupt or cannot be read.")
    uri: str = Field(description="Location in the store.")
    manifest_sha256: str
    num_bytes: int
    metrics: dict[str, float] = Field(description="Metrics at this step.")
    is_hashed: bool = Field(description="False: a part was too large to be read back, so only its size was checked.")
    pinned: bool
    created_at: datetime
    verified_at: datetime | None
    expires_at: datetime | None
    deleted_at: datetime | None
    evaluations: list[EvaluationOut] = Field(description="Newest first.")

    @field_validator("uri")
    @classmethod
    def _strip_store_address(cls, uri: str) -> str:
        return place_in_store(uri)

    @field_validator("evaluations", mode="before")
    @classmethod
    def _list_rows(cls, related: Any) -> Any:
        return list(related.all()) if isinstance(related, Manager) else related

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> Self:
        return cls.model_validate(checkpoint)


def tag_of(checkpoint: Checkpoint) -> str:
    """The checkpoint's ETag, of its changeable fields."""
    expires_at = checkpoint.expires_at
    return etag_of(checkpoint.state, int(checkpoint.pinned), str(expires_at.timestamp()) if expires_at else "never")


class RetentionOut(BaseModel):
    model_config = ConfigDict(from_attributes=True)

    keep_last: int
    keep_best: int
    metric: str
    ttl_s: int | None

    @classmethod
    def of(cls, retention: Retention) -> Self:
        return cls.model_validate(retention)


class FileOut(BaseModel):
    name: str
    num_bytes: int
    sha256: str
    url: str | None = Field(description="URL at the store, valid until `expires_at`. Null: only in the .tar.")


class DownloadOut(BaseModel):
    """A link to a Hugging Face folder. Fetch `url` with a plain GET, without a key."""

    url: str
    expires_at: datetime
    filename: str
    num_bytes: int = Field(description="Size of the .tar.")
    files: list[FileOut] = Field(description="Files in the .tar.")


class ModelVersionOut(BaseModel):
    model: str
    number: int
    checkpoint: str
    note: str
    created_at: datetime
    created_by: str
    lineage: dict[str, Any] = Field(description="Job, step, spec, data and code that produced it.")

    @classmethod
    def of(cls, version: ModelVersion, model: RegisteredModel) -> Self:
        return cls(
            model=model.name,
            number=version.number,
            checkpoint=version.checkpoint_id,
            note=version.note,
            created_at=version.created_at,
            created_by=version.created_by,
            lineage=version.lineage,
        )


class UploadedVersionOut(BaseModel):
    """A base model. A spec names it as NAME@NUMBER in model.source."""

    number: int
    asset: str
    sha256: str
    num_bytes: int
    created_at: datetime
    created_by: str


class ModelOut(BaseModel):
    id: str
    name: str
    created_at: datetime

    @classmethod
    def of(cls, model: RegisteredModel) -> Self:
        return cls(id=model.pk, name=model.name, created_at=model.created_at)


class ModelWithVersionsOut(ModelOut):
    versions: list[ModelVersionOut] = Field(description="Promoted checkpoints; newest first, at most 200.")
    uploads: list[UploadedVersionOut] = Field(description="Uploaded or registered; newest first, at most 200.")
