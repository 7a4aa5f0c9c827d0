"""Checkpoints and registered models."""

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from ..answers.checkpoints import Checkpoint, Download
from ..answers.jobs import Job
from ..answers.models import Model, ModelVersion, ModelWithVersions
from ..wire import Procedure, Stream, delete, get, patch, post
from .pages import answer, each_of, nothing, whole_list


def of_job(job_id: str) -> Procedure[list[Checkpoint]]:
    """Newest first."""
    return (yield from whole_list(Checkpoint, get("jobs", job_id, "checkpoints")))


def each(*, state: Sequence[str] = (), pinned: bool | None = None, most: int | None = None) -> Stream[Checkpoint]:
    """The team's checkpoints, newest first."""
    return each_of(Checkpoint, "checkpoints", query={"state": list(state), "pinned": pinned}, most=most)


def show(checkpoint_id: str) -> Procedure[Checkpoint]:
    return (yield from answer(Checkpoint, get("checkpoints", checkpoint_id)))


def pin(checkpoint_id: str, *, pinned: bool = True, if_match: str | None = None) -> Procedure[Checkpoint]:
    """A pinned checkpoint cannot be deleted."""
    request = patch("checkpoints", checkpoint_id, body={"pinned": pinned}, if_match=if_match)
    return (yield from answer(Checkpoint, request))


def evaluate(
    checkpoint_id: str,
    *,
    prompts: int | None = None,
    samples: int | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    environment: Mapping[str, Any] | None = None,
    replicas: int = 1,
    pool: str | None = None,
    name: str | None = None,
    max_runtime_s: int | None = None,
    idempotency_key: str | None = None,
) -> Procedure[Job]:
    """Starts a job that answers held-out prompts with these weights and does not train. When it is done, its result is
    in the checkpoint's `evaluations`. Settings default to those of the checkpoint's own job."""
    wishes: dict[str, Any] = {
        "prompts": prompts,
        "samples": samples,
        "temperature": temperature,
        "top_p": top_p,
        "environment": None if environment is None else dict(environment),
        "replicas": replicas,
        "pool": pool,
        "name": name,
        "max_runtime_s": max_runtime_s,
    }
    body = {name: value for name, value in wishes.items() if value is not None}
    yours = idempotency_key or uuid.uuid4().hex
    return (yield from answer(Job, post("checkpoints", checkpoint_id, "evaluate", body=body, idempotency_key=yours)))


def remove(checkpoint_id: str) -> Procedure[None]:
    return (yield from nothing(delete("checkpoints", checkpoint_id)))


def link(checkpoint_id: str) -> Procedure[Download]:
    """A link to the model as a Hugging Face folder in one .tar; valid for a few minutes, and needs no key."""
    return (yield from answer(Download, post("checkpoints", checkpoint_id, "download", repeatable=True)))


def promote(checkpoint_id: str, name: str, *, note: str = "") -> Procedure[ModelVersion]:
    """Makes the checkpoint a version of a model. Repeated under the same name, it returns the existing version."""
    body = {"name": name, "note": note}
    return (yield from answer(ModelVersion, post("checkpoints", checkpoint_id, "promote", body=body, repeatable=True)))


def models(*, most: int | None = None) -> Stream[Model]:
    return each_of(Model, "models", query={}, most=most)


def model(name: str) -> Procedure[ModelWithVersions]:
    return (yield from answer(ModelWithVersions, get("models", name)))


def version(name: str, number: int) -> Procedure[ModelVersion]:
    return (yield from answer(ModelVersion, get("models", name, "versions", str(number))))


def change_note(name: str, number: int, note: str, *, if_match: str | None = None) -> Procedure[ModelVersion]:
    """The note is the only part of a version that can change."""
    request = patch("models", name, "versions", str(number), body={"note": note}, if_match=if_match)
    return (yield from answer(ModelVersion, request))


def remove_version(name: str, number: int) -> Procedure[None]:
    """For admins. The checkpoint is kept and stays pinned; the number is never reused."""
    return (yield from nothing(delete("models", name, "versions", str(number))))


def remove_model(name: str) -> Procedure[None]:
    """For admins. The model must have no versions."""
    return (yield from nothing(delete("models", name)))
