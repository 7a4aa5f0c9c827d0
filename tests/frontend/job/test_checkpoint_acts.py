"""Checkpoints on a job's page: pin, promote, delete, download, and the retention rule."""

import re

import pytest
from django.test import Client

from backend.audit.models import AuditEntry
from backend.checkpoints.files import Elsewhere
from backend.checkpoints.models import Checkpoint, CheckpointState, ModelVersion, RegisteredModel, Retention
from tests.frontend import seed
from tests.frontend.html_reading import words_of
from tests.frontend.job.driver_facts import saved
from tests.frontend.seed import World


@pytest.fixture
def kept(world: World) -> list[Checkpoint]:
    """Checkpoints of steps 2, 4 and 6 of a job that has done 8."""
    job = seed.failed(world)
    return [saved(job, step=step) for step in (2, 4, 6)]


def offered(client: Client, checkpoint: Checkpoint) -> set[str]:
    page = words_of(client.get(f"/jobs/{checkpoint.job_id}/checkpoints/"))
    row = page.split(f'id="{checkpoint.pk}"')[1].split("</tr>")[0]
    return set(re.findall(r'aria-label="(\w+)', row))


def test_what_can_be_done_is_offered_to_who_may(
    owner: Client, viewer: Client, outsider: Client, kept: list[Checkpoint]
) -> None:
    one = kept[0]
    assert offered(owner, one) == {"Evaluate", "Retry", "New", "Download", "Promote", "Pin", "Delete"}
    assert offered(viewer, one) == {"Download"}
    for verb in ("pin", "promote", "delete", "unpin"):
        assert viewer.post(f"/checkpoints/{one.pk}/{verb}").status_code == 403
        assert outsider.post(f"/checkpoints/{one.pk}/{verb}").status_code == 404
    Checkpoint.objects.filter(pk=one.pk).update(state=CheckpointState.CORRUPT, message="a part is missing")
    assert offered(owner, one) == {"Pin", "Delete"}
    assert "a part is missing" in words_of(owner.get(f"/jobs/{one.job_id}/checkpoints/"))


def test_what_is_pinned_is_not_deleted_until_it_is_unpinned(owner: Client, kept: list[Checkpoint]) -> None:
    one = kept[0]
    assert "is pinned. It is kept until you unpin it" in words_of(owner.post(f"/checkpoints/{one.pk}/pin", follow=True))
    assert offered(owner, one) == {"Evaluate", "Retry", "New", "Download", "Promote", "Unpin"}
    assert "notice error" in words_of(owner.post(f"/checkpoints/{one.pk}/delete", follow=True))
    question = words_of(owner.get(f"/checkpoints/{one.pk}/unpin"))
    assert "it keeps the newest 5 and the best 1 by reward/mean and deletes the others" in question
    owner.post(f"/checkpoints/{one.pk}/unpin")
    assert "is deleted" in words_of(owner.post(f"/checkpoints/{one.pk}/delete", follow=True))
    assert Checkpoint.objects.get(pk=one.pk).state == CheckpointState.DELETING


def test_pinning_and_unpinning_are_undone_by_one_press(owner: Client, kept: list[Checkpoint]) -> None:
    one = kept[0]
    for verb, back, pinned in (("pin", "unpin", True), ("unpin", "pin", False)):
        said = words_of(owner.post(f"/checkpoints/{one.pk}/{verb}", follow=True))
        assert f'<form method="post" action="/checkpoints/{one.pk}/{back}">' in said.split('class="notices', 1)[1]
        assert Checkpoint.objects.get(pk=one.pk).pinned is pinned
    said = words_of(owner.post(f"/checkpoints/{one.pk}/delete", follow=True))
    assert "Undo" not in said, "nothing brings it back"


def test_deleting_newest_checkpoint_states_next_start(owner: Client, kept: list[Checkpoint]) -> None:
    assert "will start after step 4." in words_of(owner.get(f"/checkpoints/{kept[2].pk}/delete"))
    assert "will start" not in words_of(owner.get(f"/checkpoints/{kept[0].pk}/delete"))
    Checkpoint.objects.filter(pk__in=[kept[0].pk, kept[1].pk]).delete()
    assert "will start from the beginning." in words_of(owner.get(f"/checkpoints/{kept[2].pk}/delete"))
    assert Checkpoint.objects.get().state == CheckpointState.COMPLETE, "it was a question"


def test_a_promoted_checkpoint_is_named_and_stays(owner: Client, kept: list[Checkpoint]) -> None:
    one = kept[1]
    said = words_of(owner.post(f"/checkpoints/{one.pk}/promote", {"name": "adder", "note": "the first"}, follow=True))
    assert "version 1 of adder" in said and "version 1 of <b>adder</b>" in said
    assert ModelVersion.objects.get().note == "the first"
    assert "Unpin" not in offered(owner, one) and "Delete" not in offered(owner, one)
    assert "already" in words_of(owner.post(f"/checkpoints/{one.pk}/promote", {"name": "adder"}, follow=True))
    assert '<option value="adder">' in words_of(owner.get(f"/checkpoints/{kept[2].pk}/promote"))


@pytest.mark.parametrize("name", ["", "-x", "a b", "x" * 101, "a/b"])
def test_a_model_needs_a_name_that_a_spec_can_write(owner: Client, kept: list[Checkpoint], name: str) -> None:
    said = words_of(owner.post(f"/checkpoints/{kept[0].pk}/promote", {"name": name}, follow=True))
    assert "notice error" in said and not RegisteredModel.objects.exists()


def test_a_download_leads_to_a_link_and_leaves_an_entry(
    owner: Client, viewer: Client, outsider: Client, kept: list[Checkpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"/checkpoints/{kept[0].pk}/download"
    assert owner.get(path).status_code == 405 and outsider.post(path).status_code == 404
    monkeypatch.setattr("backend.checkpoints.downloads.downloading.files_of", lambda checkpoint: object())
    assert "/downloads/checkpoints/" in viewer.post(path)["Location"]
    assert AuditEntry.objects.get(action="checkpoint.download_linked").target == kept[0].pk

    def elsewhere(checkpoint: Checkpoint) -> None:
        raise Elsewhere("s3 of another site")

    monkeypatch.setattr("backend.checkpoints.downloads.downloading.files_of", elsewhere)
    assert "cannot read the checkpoint" in words_of(owner.post(path, follow=True))


def test_the_rule_says_which_are_kept_and_is_changed_on_the_page(
    owner: Client, viewer: Client, kept: list[Checkpoint]
) -> None:
    path = f"/jobs/{kept[0].job_id}/retention"
    assert "Kept: the newest 5, the best 1" in words_of(viewer.get(f"/jobs/{kept[0].job_id}/checkpoints/"))
    assert viewer.get(path).status_code == viewer.post(path).status_code == 403
    sent = {"keep_last": "2", "keep_best": "0", "metric": "evaluation/reward", "days": "3"}
    assert "Kept: the newest 2, pinned ones" in words_of(owner.post(path, sent, follow=True))
    rule = Retention.objects.get()
    assert (rule.keep_last, rule.keep_best, rule.metric, rule.ttl_s) == (2, 0, "evaluation/reward", 3 * 86_400)
    assert 'name="days" inputmode="numeric" pattern="[0-9]{0,4}" value="3"' in words_of(owner.get(path))


@pytest.mark.parametrize(
    "wrong", [{"keep_last": "0"}, {"keep_last": "many"}, {"metric": ""}, {"days": "x"}, {"keep_best": "1001"}]
)
def test_a_rule_that_is_none_changes_nothing(owner: Client, kept: list[Checkpoint], wrong: dict[str, str]) -> None:
    sent = {"keep_last": "2", "keep_best": "0", "metric": "reward/mean", "days": ""} | wrong
    assert "notice error" in words_of(owner.post(f"/jobs/{kept[0].job_id}/retention", sent, follow=True))
    assert not Retention.objects.exists()
