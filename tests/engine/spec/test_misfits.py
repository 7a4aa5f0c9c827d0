"""Settings that do not fit together, and what their refusal asks for."""

import pytest
from pydantic import ValidationError

from engine.spec.job import JobSpec


def test_evaluation_with_too_many_answers_names_how_many_fit() -> None:
    most = {"name": "x", "evaluation": {"prompts": 1_024, "samples": 256}}
    assert JobSpec.model_validate(most).evaluation.samples == 256
    with pytest.raises(ValidationError, match=r"evaluation\.samples must be at most 4 with 65,536 prompts"):
        JobSpec.model_validate({"name": "x", "evaluation": {"prompts": 65_536, "samples": 5}})
