"""Checkpoints and the models that were made of them."""

from collections.abc import Sequence

from ..answers import Checkpoint, Download, Model, ModelVersion, ModelWithVersions
from ..wire import Procedure, Stream, delete, get, patch, post
from .pages import answer, each_of, nothing, whole_list


def of_job(job_id: str) -> Procedure[list[Checkpoint]]:
    """Newest first."""
    return (yield from whole_list(Checkpoint, get("jobs", job_id, "checkpoints")))


def each(*, state: Sequence[str] = (), pinned: bool | None = None, most: int | None = None) -> Stream[Checkpoint]:
    """The team's, newest first."""
    return each_of(Checkpoint, "checkpoints", query={"state": list(state), "pinned": pinned}, most=most)


def show(checkpoint_id: str) -> Procedure[Checkpoint]:
    return (yield from answer(Checkpoint, get("checkpoints", checkpoint_id)))


def pin(checkpoint_id: str, *, pinned: bool = True) -> Procedure[Checkpoint]:
    """A pinned checkpoint is deleted by nobody."""
    return (yield from answer(Checkpoint, patch("checkpoints", checkpoint_id, body={"pinned": pinned})))


def remove(checkpoint_id: str) -> Procedure[None]:
    return (yield from nothing(delete("checkpoints", checkpoint_id)))


def link(checkpoint_id: str) -> Procedure[Download]:
    """A link, good for a few minutes and without a key, to the model as a Hugging Face folder in one .tar."""
    return (yield from answer(Download, post("checkpoints", checkpoint_id, "download", repeatable=True)))


def promote(checkpoint_id: str, name: str, *, note: str = "") -> Procedure[ModelVersion]:
    """Makes it a version of a model; promoting it again under the same name gives the version that there is."""
    body = {"name": name, "note": note}
    return (yield from answer(ModelVersion, post("checkpoints", checkpoint_id, "promote", body=body, repeatable=True)))


def models(*, most: int | None = None) -> Stream[Model]:
    return each_of(Model, "models", query={}, most=most)


def model(name: str) -> Procedure[ModelWithVersions]:
    return (yield from answer(ModelWithVersions, get("models", name)))
