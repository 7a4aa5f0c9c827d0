"""Settings that conflict, and the change that their refusal suggests."""

import pytest
from pydantic import ValidationError

from engine.spec.job import JobSpec


def test_refused_evaluation_names_the_largest_sample_count() -> None:
    most = {"name": "x", "evaluation": {"prompts": 1_024, "samples": 256}}
    assert JobSpec.model_validate(most).evaluation.samples == 256
    with pytest.raises(ValidationError, match=r"evaluation\.samples must be at most 4 with 65,536 prompts"):
        JobSpec.model_validate({"name": "x", "evaluation": {"prompts": 65_536, "samples": 5}})
