"""The new-job form: errors at their fields, no lost input, and no duplicate jobs."""

import ast
import json
import re
import shlex
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from pydantic import ValidationError

from backend.api.limits.rate_limit import Rate
from backend.assets.registering import register_asset
from backend.clock import database_now
from backend.jobs.models import Job
from backend.pages.new_job.as_code import calls
from backend.pages.new_job.forms import JobForm
from backend.pages.new_job.spec_fields import spec_fields
from engine.fit.known_models import KNOWN_CONFIGS
from engine.spec.job import JobSpec
from engine.spec.settings.conditional import CONDITIONAL_SETTINGS, without_effect
from tests.backend.conftest import given_asset
from tests.frontend import seed
from tests.frontend.html_reading import text_of
from tests.frontend.new_job.job_form import filled, send
from tests.frontend.seed import World
from tests.frontend.test_page_safety import HOSTILE

CODE = "def prompt(split, ordinal, seed, params): ...\ndef respond(prompt, turns): ..."


def test_the_form_submits_what_it_shows(world: World, owner: Client) -> None:
    response = send(owner, filled(world, name="A name", training__steps="60", schedule__name="sync"))
    job = Job.objects.get()
    assert response["Location"] == f"/jobs/{job.pk}/"
    typed = {"name": "A name", "training": {"steps": 60}, "schedule": {"name": "sync"}}
    assert job.spec == JobSpec.model_validate(typed).model_dump(mode="json")
    assert (job.created_by, job.team, job.project) == (world.owner, world.team, world.project)


def test_the_same_form_sent_twice_makes_one_job(world: World, owner: Client) -> None:
    first, second = send(owner, filled(world)), send(owner, filled(world))
    assert first["Location"] == second["Location"] == f"/jobs/{Job.objects.get().pk}/"


def test_changed_form_with_used_token_is_refused_once(world: World, owner: Client) -> None:
    send(owner, filled(world))
    again = send(owner, filled(world, name="Another"))
    assert "already created a job" in text_of(again)
    token = re.search(r'name="token" value="([^"]+)"', text_of(again))
    assert token
    assert send(owner, filled(world, name="Another", token=token[1])).status_code == 302
    assert Job.objects.count() == 2


WRONG = {
    "name": ("", "Must not be empty."),
    "training__steps": ("many", "Must be a whole number; got many."),
    "training__prompts_per_step": ("0", "Must be at least 1; got 0."),
    "optimizer__learning_rate": ("7", "Must be at most 1; got 7."),
    "rollout__replicas": ("1.5", "Must be a whole number; got 1.5."),
    "schedule__name": (
        "turbulent",
        "Must be one of 'laminar', 'sync', 'one_step', 'stream', 'partial', 'bounded', 'inflight' or 'paper'; "
        "got turbulent.",
    ),
    "rollout__temperature": ("NaN", "Must be a number; got NaN."),
    "algorithm__kl__coefficient": ("0,05", "0,05 is ambiguous: enter 0.05 or 5."),
    "environment__params": (
        "No Equals",
        "Must be lower-case letters, digits and _, starting with a letter; got No Equals.",
    ),
    "tags": ("a, a", "Tags must not contain duplicates."),
}


def test_rate_limited_submission_keeps_typed_values(
    world: World, owner: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backend.pages.new_job.submit_views.SUBMITS", Rate(name="one-a-minute", limit=1, window_s=60))
    assert send(owner, filled(world, name="First")).status_code == 302
    refused = send(owner, filled(world, name="Second", token="another-token-of-this-form"))
    assert refused.status_code == 429
    assert "Too many submissions" in text_of(refused)
    assert "Second" in text_of(refused)


def test_all_errors_are_at_their_fields_and_input_is_kept(world: World, owner: Client) -> None:
    response = send(owner, filled(world, **{key: typed for key, (typed, _) in WRONG.items()}))
    page = unescape(text_of(response))
    assert response.status_code == 422
    assert f"Fix {len(WRONG)} errors" in page
    for key, (typed, message) in WRONG.items():
        place = "f-" + key.replace("__", "-")
        assert re.search(rf'id="{place}-error">.*?{re.escape(message)}', page), key
        assert f'<a href="#{place}">' in page
        assert typed in page
    assert page.count('aria-invalid="true"') == len(WRONG)
    assert '<details class="more" open>' in page
    assert not Job.objects.exists()


def test_combination_error_is_at_the_named_field(world: World, owner: Client) -> None:
    page = text_of(send(owner, filled(world, evaluation__every="500")))
    assert re.search(r'id="f-evaluation-every-error">.*must be at most training.steps', page)


def test_a_stand_in_for_a_wrong_field_is_never_blamed(world: World, owner: Client) -> None:
    page = text_of(send(owner, filled(world, evaluation__every="500", training__steps="many")))
    assert "Fix 1 error" in page


def test_a_job_that_never_fits_is_refused_beside_the_replicas(world: World, owner: Client) -> None:
    page = text_of(send(owner, filled(world, rollout__replicas="2000")))
    assert re.search(r'id="f-rollout-replicas-error">.*2001 devices', page)


@pytest.fixture
def model_of_32b(world: World, tmp_path: Path, settings: Any) -> str:
    settings.ENVIRONMENT = replace(settings.ENVIRONMENT, store_dir=tmp_path)
    folder = tmp_path / "models" / "ours"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(KNOWN_CONFIGS["Qwen3-32B"]))
    register_asset(team=world.team, kind="model", name=folder.name, place=folder.name, now=database_now())
    world.pool.device_gb = 80
    world.pool.save()
    return folder.name


def test_too_large_model_is_refused_with_arithmetic(world: World, owner: Client, model_of_32b: str) -> None:
    typed = {"model__source": model_of_32b, "rollout__engine": "vllm", "resources__trainer_devices": "1"}
    page = send(owner, filled(world, **typed)).content.decode()
    assert re.search(r"needs \d+\.\d GB at any batch size and has 80\.0 GB. It fits if you", page)
    assert "moments, float32" in page and not Job.objects.exists()


def test_a_model_and_a_pool_are_enough_for_a_job(world: World, owner: Client, model_of_32b: str) -> None:
    form = filled(world, model__source=model_of_32b)
    assert form["rollout.engine"] == form["resources.trainer_devices"] == form["rollout.replicas"] == ""
    page = unescape(text_of(send(owner, form | {"preview": "1"})))
    assert "vLLM is made for large models on GPUs" in page and "The fewest that hold the model" in page
    assert '<option value="" selected>set by the model</option>' in page
    send(owner, form)
    spec = Job.objects.get().spec
    assert (spec["rollout"]["engine"], spec["resources"]["devices_per_replica"]) == ("vllm", 2)


def test_preview_shows_presets_and_keeps_typed_values(world: World, owner: Client, model_of_32b: str) -> None:
    world.pool.device_gb = None
    world.pool.save()
    typed = {"model__source": model_of_32b, "rollout__max_new_tokens": "80"}
    page = unescape(text_of(send(owner, filled(world, **typed, preview="1"))))
    assert not Job.objects.exists() and "Defaults for this model and pool" in page
    assert re.search(
        r'href="#f-optimizer-learning_rate">Learning rate</a>: 1e-06</dt><dd>The rate used for models of 7 and 32', page
    )
    assert '#f-rollout-max_new_tokens">' not in page, "it is not the model's"
    assert 'name="optimizer.learning_rate" value=""' in page
    assert '"max_new_tokens": 80' in page and '"learning_rate"' not in page, "the call has only the typed values"
    send(owner, filled(world, **typed))
    spec = Job.objects.get().spec
    assert (spec["optimizer"]["learning_rate"], spec["rollout"]["max_new_tokens"]) == (1e-6, 80)


@pytest.mark.parametrize("target", ["", "x/y", "proj_0/pool_0"])
def test_a_target_that_is_not_ones_own_is_refused(world: World, owner: Client, target: str) -> None:
    response = send(owner, filled(world, target=target))
    assert response.status_code == 422
    assert not Job.objects.exists()


@pytest.mark.parametrize("typed", ["\x00", "a\x00b", "‮", "𝕬" * 200, HOSTILE * 3])
def test_odd_names_are_refused_or_kept_but_never_break(world: World, owner: Client, typed: str) -> None:
    assert send(owner, filled(world, name=typed)).status_code in {302, 400, 422}


def test_another_job_is_started_from_an_earlier_ones_spec(world: World, owner: Client, outsider: Client) -> None:
    job = seed.submitted(
        world, name="Earlier", environment={"name": "custom", "code": CODE, "params": {"median_terms": 9, "note": "12"}}
    )
    page = unescape(text_of(owner.get(f"/jobs/new?from={job.pk}")))
    assert 'value="Earlier (again)"' in page
    assert 'note = "12"\nmedian_terms = 9' in page
    assert "Earlier" not in text_of(outsider.get(f"/jobs/new?from={job.pk}"))


def test_every_setting_of_a_spec_survives_being_shown_and_sent() -> None:
    spec = JobSpec.model_validate(
        {
            "name": "n",
            "tags": ["a", "b c"],
            "environment": {"name": "custom", "code": CODE, "params": {"a": True, "b": 1.5, "c": "true", "d": "x = y"}},
            "schedule": {"name": "sync", "max_staleness": 3},
            "optimizer": {"learning_rate": 1e-7},
        }
    )
    assert JobForm.typed(JobForm.showing(spec).texts).spec == spec


def test_a_choice_may_be_left_to_the_job() -> None:
    spec = JobSpec.model_validate({"name": "n", "algorithm": {"name": "cispo"}})
    assert JobForm.showing(spec).texts["algorithm.correction.name"] == ""
    assert JobForm.typed(JobForm.showing(spec).texts).spec == spec


def test_idle_settings_are_marked_and_help_names_conditions(world: World, owner: Client) -> None:
    page = text_of(send(owner, filled(world, trainer__zero_stage="3", algorithm__critic__gamma="0.5")))
    assert re.search(
        r'id="f-trainer-zero_stage-error">.*Only with the trainer deepspeed\. Got 3; leave it at 2\.', page
    )
    assert re.search(r'id="f-algorithm-critic-gamma-error">.*Only with the algorithm ppo', page)
    assert "Fix 2 errors" in page and not Job.objects.exists()
    shown = text_of(owner.get("/jobs/new"))
    for effect in CONDITIONAL_SETTINGS.values():
        assert effect.only in unescape(shown)


def test_invalid_field_marks_no_other_field_as_idle() -> None:
    shown = JobForm.showing(JobSpec(name="n")).texts
    texts = {**shown, "trainer.lora_rank": "2000", "trainer.lora_alpha": "16"}
    assert set(JobForm.typed(texts).errors) == {"trainer.lora_rank"}


def test_every_field_says_what_it_is() -> None:
    assert not [each.path for each in spec_fields() if not each.description]


def judged(client: Client, form: dict[str, str]) -> str:
    """The preview response while the user types."""
    answer = send(client, {**form, "part": "judged"})
    assert answer.status_code == 200 and not Job.objects.exists()
    return unescape(text_of(answer))


def test_unknown_names_are_reported_while_typing(world: World, owner: Client) -> None:
    typed = {"model__source": "nobody-has-it", "algorithm__teacher__source": "nor-this"}
    page = judged(owner, filled(world, **typed))
    for place, name in (("model-source", "nobody-has-it"), ("algorithm-teacher-source", "nor-this")):
        assert re.search(rf'data-field="f-{place}"><span dir="auto">Your team has no model .{name}', page)
    page = judged(owner, filled(world, environment__name="jsonl", environment__params="data = sums"))
    assert re.search(r'data-field="f-environment-params"><span dir="auto">Your team has no data set .sums', page)
    page = judged(owner, filled(world, environment__name="tool_sums", environment__params="turns = 0\ndepth = 3"))
    assert "Turns: a whole number from 1 to 63; got 0." in page
    assert "Data: a data set is required." in judged(owner, filled(world, environment__name="jsonl"))
    assert "Unknown parameter 'depth'; choose from turns, waits" in page
    puzzle = judged(owner, filled(world, environment__name="reasoning_gym", environment__params="depth = 3"))
    assert "Unknown parameter 'depth' of the task chain_sum; choose from allow_negation, max_digits" in puzzle


def test_what_belongs_to_no_field_is_told_above_the_outlook(world: World, owner: Client) -> None:
    assert "The checkpoint was deleted" in judged(owner, filled(world, start_from="ckpt_0", offered="ckpt_0"))


def test_hints_are_shown_above_the_outlook(world: World, owner: Client) -> None:
    page = judged(owner, filled(world, rollout__max_batch="512", rollout__top_p="0.9"))
    assert "Set rollout.replicas to 1" in page and "(rollout.top_p 0.9)" in page
    assert "Set rollout.replicas" not in judged(owner, filled(world))


def test_rest_refuses_a_wrong_parameter_in_the_words_of_the_page(world: World, owner: Client) -> None:
    with pytest.raises(ValidationError, match="unknown parameter 'depth'; choose from turns, waits") as refused:
        JobSpec.model_validate({"name": "n", "environment": {"name": "tool_sums", "params": {"depth": 3}}})
    assert refused.value.errors()[0]["loc"] == ("environment", "params", "depth")


def test_idle_setting_is_disabled_with_reason(world: World, owner: Client) -> None:
    page = unescape(text_of(owner.get("/jobs/new")))
    for path in without_effect(JobSpec(name="n")):
        place = "f-" + path.replace(".", "-")
        assert re.search(rf'id="{place}"[^>]* disabled', page), path
        assert re.search(
            rf'id="{place}-acts"><b>No effect in this job.</b> {re.escape(CONDITIONAL_SETTINGS[path].only)}', page
        )
    assert '<li data-field="f-algorithm-critic-gamma" data-idle>' in judged(owner, filled(world))
    with_ppo = judged(owner, filled(world, algorithm__name="ppo"))
    assert "f-algorithm-critic-gamma" not in with_ppo and '"f-algorithm-critic-value_clip" data-idle' in with_ppo


def test_idle_setting_with_a_value_stays_editable(world: World, owner: Client) -> None:
    page = judged(owner, filled(world, trainer__zero_stage="3", training__steps="many"))
    assert "f-trainer-zero_stage" not in page, "reported once the other field is valid, and enabled until then"
    page = judged(owner, filled(world, trainer__zero_stage="3"))
    assert re.search(r'data-field="f-trainer-zero_stage"><span dir="auto">trainer.zero_stage has no effect', page)


def test_what_a_browser_does_not_send_has_its_default(world: World, owner: Client) -> None:
    idle = without_effect(JobSpec(name="n"))
    form = {name: value for name, value in filled(world).items() if name not in idle}
    assert send(owner, form).status_code == 302
    assert Job.objects.get().spec == JobSpec(name="Sums").model_dump(mode="json")


def test_as_code_all_three_say_the_same_body(world: World, owner: Client) -> None:
    hostile = "'); __import__('os') # \"SPEC\"\nSPEC"
    body = {"project": "proj_1", "pool": "a pool", "start_from": "ckpt_1"}
    spec = {"name": hostile, "training": {"steps": 7}, "environment": {"code": "a = 1\nSPEC\n" * 9}}
    by = {call.key: call.text for call in calls({**body, "spec": spec})}
    sent = shlex.split(by["curl"].replace("\\\n", " "))
    assert json.loads(sent[sent.index("-d") + 1]) == {**body, "spec": spec}
    head, _, rest = by["command"].partition("\n")
    assert shlex.split(head)[:-1] == [
        "laminar",
        "submit",
        "-",
        "--project",
        "proj_1",
        "--pool",
        "a pool",
        "--from",
        "ckpt_1",
    ]
    document, end = rest.rsplit("SPEC\n", 1)
    assert end == "" and json.loads(document) == spec and "SPEC" not in document.split("\n")
    [call] = [node for node in ast.walk(ast.parse(by["python"])) if isinstance(node, ast.Call) and node.keywords]
    assert ast.literal_eval(call.args[0]) == spec
    assert {each.arg: ast.literal_eval(each.value) for each in call.keywords} == body


def test_form_completes_only_names_of_own_teams(world: World, owner: Client, outsider: Client) -> None:
    for name, version in (("tiny", 1), ("tiny", 2)):
        given_asset(world.team, "model", name, version=version)
    given_asset(world.team, "data", "ours")
    given_asset(None, "data", "everybodys")
    page = unescape(text_of(owner.get("/jobs/new")))
    names = re.findall(
        r'<option value="([^"]+)"></option>', page.split('<datalist id="models">')[1].split("</datalist>")[0]
    )
    assert names == ["demo", "tiny", "tiny@2", "tiny@1"]
    told = page.split("Data sets:")[1].split("</p>")[0]
    assert re.findall(r"<code>([^<]+)</code>", told) == ["demo/sums", "everybodys", "everybodys@1", "ours", "ours@1"]
    theirs = unescape(text_of(outsider.get("/jobs/new")))
    assert "tiny" not in theirs and ">ours" not in theirs
