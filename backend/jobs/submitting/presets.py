"""A spec filled in by its model's presets, where the model's shape is known here.

Invariant: whoever looks at a spec before it is submitted sees the one that is submitted.
"""

from backend.accounts.models import Team
from backend.jobs.submitting.fitting import shape_of
from engine.spec import presets
from engine.spec.job import JobSpec
from engine.spec.presets import Preset


def filled(spec: JobSpec, team: Team) -> JobSpec:
    return presets.filled(spec, shape_of(spec.model.source, team))


def in_force(spec: JobSpec, team: Team) -> tuple[Preset, ...]:
    return presets.in_force(spec, shape_of(spec.model.source, team))
