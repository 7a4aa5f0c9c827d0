"""A stored spec loses nothing, and says nothing that the release before could not read."""

import pytest

from engine.spec.job import JobSpec
from engine.spec.stored import YOUNG, as_stored


@pytest.mark.parametrize("schedule", [{}, {"lead_steps": 0.5}, {"age_cap": 2}, {"lead_steps": 2, "age_cap": 1}])
def test_a_stored_spec_is_read_as_it_was_and_has_a_young_field_only_where_it_is_set(schedule: dict[str, float]) -> None:
    spec = JobSpec.model_validate({"name": "kept", "schedule": {"name": "laminar", **schedule}})
    stored = as_stored(spec)
    assert JobSpec.model_validate(stored) == spec
    assert {field for part, field in YOUNG if field in stored[part]} == set(schedule)
