"""A spec as it is kept: readable by the release before, so that the way back is one.

Invariant: a field that this release has brought is written only where it says something. An older one knows no such
field, and would take the whole spec for one that it does not understand.
"""

from typing import Any, Final

from engine.spec.job import JobSpec

YOUNG: Final = (("schedule", "lead_steps"), ("schedule", "age_cap"))
"""Fields that are younger than a release which may be gone back to. Empty is what they were before they were there."""


def as_stored(spec: JobSpec) -> dict[str, Any]:
    document = spec.model_dump(mode="json")
    for part, field in YOUNG:
        if document[part][field] is None:
            del document[part][field]
    return document
