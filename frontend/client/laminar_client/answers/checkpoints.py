"""Checkpoints, their evaluations and download links."""

from datetime import datetime

from .record import Answer, record


@record
class Evaluation(Answer):
    """The result of an evaluation of a checkpoint."""

    job: str
    at: datetime
    environment: str
    prompts: int
    samples: int
    reward_mean: float
    reward_std: float
    reward_error: float
    pass_rate: float | None
    pass_error: float
    length_mean: float


@record
class Checkpoint(Answer):
    id: str
    job: str
    attempt: int
    step: int
    version: int
    state: str
    message: str
    num_bytes: int
    metrics: dict[str, float]
    pinned: bool
    created_at: datetime
    expires_at: datetime | None
    evaluations: list[Evaluation]


@record
class DownloadFile(Answer):
    name: str
    num_bytes: int
    sha256: str


@record
class Download(Answer):
    """A link that is valid for a few minutes, and the files behind it."""

    url: str
    expires_at: datetime
    filename: str
    num_bytes: int
    files: list[DownloadFile]
