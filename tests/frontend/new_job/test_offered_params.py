"""The offered parameters of the chosen environment."""

import pytest
from django.test import Client

from backend.pages.new_job.environment_params import offered_params
from backend.pages.new_job.spec_fields import settings_of
from engine.spec.environments.params import ENVIRONMENTS
from tests.frontend.html_reading import text_of
from tests.frontend.new_job.job_form import filled, send
from tests.frontend.seed import World


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_every_parameter_is_offered_and_what_is_offered_is_taken(environment: str) -> None:
    offered = offered_params(environment, "", ["demo/sums"])
    assert offered is not None
    assert [each.name for each in offered.params] == list(ENVIRONMENTS[environment].params)
    for each in offered.params:
        row = ENVIRONMENTS[environment].params[each.name]
        for value in (each.default, *each.values):
            [(name, read)] = settings_of(f"{each.name} = {value}").items()
            assert name == each.name and row.wrong(read) is None


def test_offers_know_typed_values_and_data_sets() -> None:
    offered = offered_params("jsonl", "verifier = numeric", ["demo/sums", "7up"])
    assert offered is not None
    by_name = {each.name: each for each in offered.params}
    assert by_name["verifier"].is_typed and not by_name["tolerance"].is_typed
    assert by_name["data"].is_required and by_name["data"].values == ["demo/sums", "7up"]
    assert offered_params("nobodys", "", []) is None


def test_form_offers_parameters_of_chosen_environment(world: World, owner: Client) -> None:
    page = text_of(owner.get("/jobs/new"))
    assert 'data-offer="median_terms = 6.0"' in page and "max_turns" not in page
    judged = text_of(send(owner, filled(world, environment__name="tools") | {"part": "judged"}))
    assert 'data-offer="calls = tool_call"' in judged and "median_terms" not in judged
