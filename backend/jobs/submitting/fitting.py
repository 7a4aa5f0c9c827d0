"""Checks whether a job fits the devices of its pool, as far as that is known before anything runs.

A pool gives the memory of its devices. A model gives its shape: by the config.json stored at upload or registration,
or by its name, for a public model. If either is unknown, nothing is decided here: the engine repeats the same
arithmetic on the actual device.

Invariant: a job is refused only if no batch size would make it fit, according to a config.json that was read.
"""

import logging
from dataclasses import dataclass

from backend.accounts.models import Team
from backend.jobs.attempts.asset_catalog import asset_catalog
from backend.pools.models import ResourcePool
from engine.fit.backends import backend_lines
from engine.fit.known_models import KNOWN_CONFIGS, known_shape
from engine.fit.need import GB, Need, gigabytes
from engine.fit.planning import plan_trainer
from engine.fit.replica import ReplicaPlan, replica_need
from engine.fit.shape import ModelShape
from engine.fit.trainer import trainer_need
from engine.fit.verdict import Misfit, will_not_fit
from engine.spec.assets.named_assets import BUILT_IN_MODELS
from engine.spec.job import JobSpec

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    misfit: Misfit | None
    sentence: str
    arithmetic: tuple[str, ...]
    """One line per term, for each kind of device, and the needs of each trainer backend."""
    is_refused: bool
    pointer: str = ""
    """Place in the spec of the smallest change that helps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shapes:
    model: ModelShape | None
    """None if unknown, as for a teacher."""
    teacher: ModelShape | None
    are_known: bool
    """True if the shapes of all models that the spec names are known."""
    are_read: bool
    """True if all are of the team's stored models; otherwise some come from public models of these names."""


def shapes_of(spec: JobSpec, team: Team) -> Shapes:
    sources = [spec.model.source, *([spec.algorithm.teacher.source] if spec.algorithm.has_teacher else [])]
    stored = [_stored_shape(source, team) for source in sources]
    model, *teachers = [read or _public_shape(source) for read, source in zip(stored, sources, strict=True)]
    return Shapes(
        model=model,
        teacher=teachers[0] if teachers else None,
        are_known=None not in (model, *teachers),
        are_read=all(stored),
    )


def fit_of(spec: JobSpec, pool: ResourcePool, shapes: Shapes) -> Fit | None:
    """None if unknown."""
    if pool.device_gb is None or shapes.model is None or not shapes.are_known:
        return None
    shape, teacher = shapes.model, shapes.teacher
    misfit = will_not_fit(spec, shape, pool.device_gb * GB, teacher=teacher, num_devices=pool.capacity)
    needs = _needs(spec, shape, teacher)
    return Fit(
        misfit=misfit,
        sentence=_describe_fit(needs, pool.device_gb) if misfit is None else misfit.sentence,
        arithmetic=(*(line for need in needs for line in need.lines), *backend_lines(spec, shape, teacher=teacher)),
        # How many devices a host has is not known here, only in the attempt.
        is_refused=misfit is not None and misfit.is_certain and shapes.are_read and spec.trainer.shard_within == "all",
        pointer=_pointer(misfit),
    )


def _needs(spec: JobSpec, shape: ModelShape, teacher: ModelShape | None) -> list[Need]:
    replica = replica_need(shape, ReplicaPlan.of_spec(spec, shape))
    if spec.only_evaluates:
        return [replica]
    return [trainer_need(shape, plan_trainer(spec, shape, teacher=teacher)), replica]


def _describe_fit(needs: list[Need], device_gb: int) -> str:
    each = ", ".join(f"{need.of[0].lower()}{need.of[1:]} needs up to {gigabytes(need.num_bytes)}" for need in needs)
    return f"Fits devices of {device_gb} GB: {each}."


def _pointer(misfit: Misfit | None) -> str:
    if misfit is None or misfit.changes is None:
        return "/model/source"
    [first, *_] = misfit.changes[0].settings
    return "/" + first.replace(".", "/")


def _public_shape(source: str) -> ModelShape | None:
    return known_shape(source) if source in KNOWN_CONFIGS else None


def _stored_shape(source: str, team: Team) -> ModelShape | None:
    """Shape of an uploaded or registered model."""
    config = None if source in BUILT_IN_MODELS else asset_catalog().config_of(team, source)
    if config is None:
        return None
    try:
        return ModelShape.of_config(config)
    except (ValueError, AttributeError, TypeError, KeyError) as error:  # a custom model: the engine reports the error
        log.info("fit=unknown model=%s reason=%s", source, error)
        return None
