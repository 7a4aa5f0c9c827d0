"""The commands for evaluations, bulk cancel, faults, timeline, members, audit and webhooks, on a real server."""

import json
from datetime import UTC, datetime

from django.db import transaction

from backend.checkpoints.models import CheckpointEvaluation
from backend.jobs.lifecycle import locked_job, record_event
from backend.jobs.models import Job
from backend.webhooks.models import WebhookEndpoint
from frontend.client.laminar_client import Laminar
from tests.backend.conftest import given_asset
from tests.frontend.client.conftest import Shell, checkpoint_of
from tests.frontend.seed import World, finished, running, submitted


def test_a_checkpoint_is_evaluated_and_its_results_are_listed(shell: Shell, world: World) -> None:
    checkpoint = checkpoint_of(finished(world, steps=2))
    drawn = ("--prompts", "7", "--samples", "4", "--temperature", "0.6", "--top-p", "0.95")
    job = Job.objects.get(pk=shell("evaluate", checkpoint.pk, *drawn).stdout.strip())
    asked = job.spec["evaluation"]
    assert (job.steps, job.start_from, asked["prompts"]) == (0, checkpoint.pk, 7)
    assert (asked["samples"], asked["temperature"], asked["top_p"]) == (4, 0.6, 0.95)
    assert "evaluates step" in shell("show", job.pk).stdout and "0 of 7 prompts" in shell("show", job.pk).stdout
    assert "0/7 prompts" in shell("list").stdout and "2/2 steps" in shell("list").stdout
    given_asset(world.team, "data", "exam.jsonl")
    made = shell.json("evaluate", checkpoint.pk, "--dataset", "exam.jsonl", "--param", "verifier=exact")
    assert made["spec"]["environment"]["name"] == "jsonl"
    assert made["spec"]["environment"]["params"] == {"data": "exam.jsonl@1", "verifier": "exact"}
    CheckpointEvaluation.objects.create(
        job=job, checkpoint=checkpoint, at=datetime.now(UTC), environment="running_sums", num_prompts=7,
        reward_mean=0.625, reward_std=0.25, reward_error=0.0945, length_mean=9.0,
    )  # fmt: skip
    assert "0.625 ± 0.095" in shell("checkpoints").stdout
    [told] = shell.json("checkpoints")[0]["evaluations"]
    assert (told["job"], told["prompts"]) == (job.pk, 7)


def test_evaluate_waits_and_is_idempotent(shell: Shell, world: World) -> None:
    checkpoint = checkpoint_of(finished(world, steps=2))
    ask = ("evaluate", checkpoint.pk, "--idempotency-key", "nightly")
    job_id = shell(*ask).stdout.strip()
    shell("cancel", job_id)
    CheckpointEvaluation.objects.create(
        job_id=job_id, checkpoint=checkpoint, at=datetime.now(UTC), environment="running_sums", num_prompts=7,
        num_samples=4, reward_mean=0.625, reward_std=0.25, reward_error=0.0945, pass_rate=0.75, pass_error=0.177,
        length_mean=9.0,
    )  # fmt: skip
    shown = shell(*ask, "--wait", code=1).stdout  # cancelled, despite its earlier result
    result = f"step {checkpoint.step}: reward 0.625 ± 0.095, pass@4 0.75 ± 0.18, over 7 prompts"
    assert job_id in shown and result in shown
    assert Job.objects.filter(steps=0).count() == 1


def test_wrong_use_of_evaluate_is_told(shell: Shell, world: World) -> None:
    checkpoint = checkpoint_of(finished(world, steps=2))
    shell("evaluate", checkpoint.pk, "--param", "a=1", code=2)
    shell("evaluate", checkpoint.pk, "--environment", "tools", "--dataset", "x", code=2)
    shell("evaluate", "ckpt_absent", code=3)
    assert Job.objects.filter(steps=0).count() == 0


def test_of_several_cancels_each_is_told_and_one_stops_no_other(shell: Shell, world: World) -> None:
    over, waiting = finished(world, steps=2), [submitted(world) for _ in range(2)]
    ids = [over.pk, "job_absent", *(job.pk for job in waiting)]
    lines = [json.loads(line) for line in shell("cancel", *ids, "--json", code=1).stdout.splitlines()]
    assert [line["result"] for line in lines] == ["finished", "not_found", "cancelled", "cancelled"]
    assert "already" in shell("cancel", *(job.pk for job in waiting)).stdout


def test_faults_and_timeline(shell: Shell, world: World) -> None:
    job = running(world, steps_done=2)
    with transaction.atomic():
        data = {"component": "rollout/1", "action": "a replacement starts"}
        actor, now = "engine:1", datetime.now(UTC)
        record_event(locked_job(job.pk), "fault_detected", actor=actor, now=now, message="it died", data=data)
    assert "a replacement starts" in shell("faults", job.pk).stdout
    assert shell.json("faults", job.pk)[0]["component"] == "rollout/1"
    assert set(shell.json("timeline", job.pk)) >= {"spans", "cells", "cell_s"}
    shell("timeline", job.pk)
    shell("faults", "job_absent", code=3)


def test_members_are_listed_invited_and_given_roles(shell: Shell, world: World) -> None:
    [vera] = [each for each in shell.json("members") if each["role"] == "viewer"]
    assert vera["email"] in shell("members").stdout
    assert shell.json("members", "role", vera["id"], "member")["role"] == "member"
    link = shell("members", "invite", "new@example.org").stdout.strip()
    assert link.startswith("http")
    shell("members", "remove", vera["id"])
    assert vera["id"] not in [each["id"] for each in shell.json("members")]
    shell("members", "remove", vera["id"], code=3)


def test_the_audit_log_tells_who_did_what(shell: Shell, world: World) -> None:
    job = submitted(world)
    shell("cancel", job.pk)
    assert job.pk in shell("audit", "--action", "job.cancel").stdout
    [entry] = shell.json("audit", "--target", job.pk)
    assert (entry["action"], len(entry["hash"])) == ("job.cancel", 64)
    assert shell.json("audit", "--since", "2999-01-01") == []


def test_webhooks_are_made_switched_tested_and_removed(shell: Shell, world: World) -> None:
    made = shell.json("webhooks", "create", "https://example.org/hook", "--event", "job.succeeded")
    shell.printed.clear()  # the one intended output of the secret
    shell.secrets.append(made["secret"])
    assert made["id"] in shell("webhooks").stdout
    assert shell.json("webhooks", "disable", made["id"])["enabled"] is False
    assert shell.json("webhooks", "enable", made["id"])["enabled"] is True
    delivery = shell.json("webhooks", "test", made["id"])
    assert delivery["type"] == "webhook.test"
    assert delivery["id"] in shell("webhooks", "deliveries", made["id"]).stdout
    shell("webhooks", "redeliver", made["id"], "dlv_absent", code=3)
    assert shell.json("webhooks", "rotate", made["id"])["secret"] != made["secret"]
    shell("webhooks", "remove", made["id"])
    assert WebhookEndpoint.objects.count() == 0


def test_a_version_is_taken_back_and_a_note_changed_from_python(client: Laminar, shell: Shell, world: World) -> None:
    checkpoint = checkpoint_of(finished(world, steps=2))
    client.checkpoints.promote(checkpoint.pk, "sums")
    assert client.models.change_note("sums", 1, "better").note == client.models.version("sums", 1).note == "better"
    shell("unpromote", "sums", code=5)
    shell("unpromote", "sums", "1")
    shell("unpromote", "sums")
    assert list(client.models.each()) == []
