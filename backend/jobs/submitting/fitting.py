"""Whether a job fits the devices of its pool, as far as that can be known before anything runs.

A pool tells what memory a device of it has, a model its shape: by its config.json, kept when it
was uploaded or registered, or by its
name, if that is a public model's. Where either is unknown nothing is judged here: the engine asks the same arithmetic
once more, with its device before it.

Invariant: a job is refused for what no batch would change, by a config.json that was read, and for nothing else.
"""

import logging
from dataclasses import dataclass

from backend.accounts.models import Team
from backend.jobs.attempts.library import library
from backend.pools.models import ResourcePool
from engine.spec.fit.backends import backend_lines
from engine.spec.fit.known_models import KNOWN_CONFIGS, known_shape
from engine.spec.fit.need import GB, Need, gigabytes
from engine.spec.fit.plan import TrainerPlan
from engine.spec.fit.replica import ReplicaPlan, replica_need
from engine.spec.fit.shape import ModelShape
from engine.spec.fit.trainer import trainer_need
from engine.spec.fit.verdict import Misfit, will_not_fit
from engine.spec.job import JobSpec
from engine.spec.named_assets import BUILT_IN_MODELS

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    misfit: Misfit | None
    sentence: str
    arithmetic: tuple[str, ...]
    """A line a term, of each kind of device; and what each backend of the trainer would need."""
    is_refused: bool
    pointer: str = ""
    """Into the spec: where the smallest change that helps would be made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shapes:
    model: ModelShape
    teacher: ModelShape | None
    are_read: bool
    """Of models that the team has; else some of it is what public models of these names have."""


def shapes_of(spec: JobSpec, team: Team) -> Shapes | None:
    """None: not all of them are known."""
    sources = [spec.model.source, *([spec.algorithm.teacher.source] if spec.algorithm.has_teacher else [])]
    stored = [_stored_shape(source, team) for source in sources]
    model, *teachers = [read or _public_shape(source) for read, source in zip(stored, sources, strict=True)]
    if model is None or None in teachers:
        return None
    return Shapes(model=model, teacher=teachers[0] if teachers else None, are_read=all(stored))


def shape_of(source: str, team: Team) -> ModelShape | None:
    """None: it is not known."""
    return _stored_shape(source, team) or _public_shape(source)


def fit_of(spec: JobSpec, pool: ResourcePool, team: Team) -> Fit | None:
    """None: it is not known."""
    if pool.device_gb is None:
        return None
    shapes = shapes_of(spec, team)
    if shapes is None:
        return None
    shape, teacher = shapes.model, shapes.teacher
    misfit = will_not_fit(spec, shape, pool.device_gb * GB, teacher=teacher, num_devices=pool.capacity)
    needs = _needs(spec, shape, teacher)
    return Fit(
        misfit=misfit,
        sentence=_fits(needs, pool.device_gb) if misfit is None else misfit.sentence,
        arithmetic=(*(line for need in needs for line in need.lines), *backend_lines(spec, shape, teacher=teacher)),
        is_refused=misfit is not None and misfit.is_certain and shapes.are_read,
        pointer=_pointer(misfit),
    )


def _needs(spec: JobSpec, shape: ModelShape, teacher: ModelShape | None) -> list[Need]:
    replica = replica_need(shape, ReplicaPlan.of_spec(spec, shape))
    if spec.only_evaluates:
        return [replica]
    return [trainer_need(shape, TrainerPlan.of_spec(spec, shape, teacher=teacher)), replica]


def _fits(needs: list[Need], device_gb: int) -> str:
    each = ", ".join(f"{need.of[0].lower()}{need.of[1:]} needs up to {gigabytes(need.num_bytes)}" for need in needs)
    return f"It fits devices of {device_gb} GB: {each}."


def _pointer(misfit: Misfit | None) -> str:
    if misfit is None or misfit.changes is None:
        return "/model/source"
    [first, *_] = misfit.changes[0].settings
    return "/" + first.replace(".", "/")


def _public_shape(source: str) -> ModelShape | None:
    return known_shape(source) if source in KNOWN_CONFIGS else None


def _stored_shape(source: str, team: Team) -> ModelShape | None:
    """Of a model that was uploaded or registered."""
    config = None if source in BUILT_IN_MODELS else library().config_of(team, source)
    if config is None:
        return None
    try:
        return ModelShape.of_config(config)
    except (ValueError, AttributeError, TypeError, KeyError) as error:  # somebody's own: the engine says what is wrong
        log.info("fit=unknown model=%s reason=%s", source, error)
        return None
