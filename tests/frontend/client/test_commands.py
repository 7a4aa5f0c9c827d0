"""Every command against the real server: effects and refusals."""

import json
import signal
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from django.db import transaction

from backend.accounts.models import ApiKey
from backend.jobs.lifecycle import locked_job, next_cursor
from backend.jobs.models import Job, JobState
from backend.telemetry.logs.batches import store_lines
from engine.spec.facts import LogLine, LogLines
from frontend.client.laminar_client.profiles import config_file
from tests.frontend.client.conftest import Shell, checkpoint_of
from tests.frontend.conftest import Server
from tests.frontend.seed import World, ended, failed, finished, running, submitted

HOSTILE = "\x1b]0;owned\x07 \x9b31m \u202egpj.exe"


def write_lines(job: Job, *texts: str) -> None:
    """Writes to the database directly: the server refuses control characters, but the client must not rely on that."""
    now = datetime.now(UTC)
    with transaction.atomic():
        locked = locked_job(job.pk)
        lines = [LogLine.model_construct(at=now, level="info", message=text) for text in texts]
        told = LogLines.model_construct(component="driver", lines=lines, num_dropped=0)
        store_lines(locked, 1, told, cursor=next_cursor(locked), now=now)


@pytest.mark.long
def test_login_prompts_without_echo_and_stores_key_privately(
    newcomer: Shell, server: Server, key: str, key_of: Callable[..., str], world: World
) -> None:
    shown = newcomer("login", input=f"{server.url}\n{key}\n")
    assert "API key:" in shown.stderr
    path = config_file(newcomer.environment)
    assert path.stat().st_mode & 0o777 == 0o600
    other = key_of(world.viewer)
    newcomer.secrets.append(other)
    newcomer("login", "--profile", "vera", "--url", server.url, "--key-stdin", input=other + "\n")
    assert newcomer.json("whoami")["user"] == "ada@example.org"
    assert newcomer.json("whoami", "--profile", "vera")["role"] == "viewer"
    newcomer("logout", "--profile", "vera")
    newcomer("whoami", "--profile", "vera", code=2)
    assert other not in path.read_text()


def test_a_wrong_key_is_refused_and_not_kept(newcomer: Shell, server: Server) -> None:
    newcomer("login", "--url", server.url, "--key-stdin", input="lam_live_00000000_" + "x" * 43, code=4)
    assert not config_file(newcomer.environment).exists()
    newcomer("login", "--url", server.url, "--key-stdin", input="two words", code=2)
    newcomer("login", "--url", "nowhere", "--key-stdin", input="x", code=2)
    newcomer("list", code=2)


def test_a_spec_that_breaks_rules_is_told_place_by_place(shell: Shell, tmp_path: Path) -> None:
    spec = tmp_path / "spec.json"
    spec.write_text(json.dumps({"name": "", "training": {"steps": -1}, "colour": "red"}))
    told = shell("submit", str(spec), code=2).stderr
    assert all(place in told for place in ("/spec/name", "/spec/training/steps", "/spec/colour"))
    error = json.loads(shell("preview", str(spec), "--json", code=2).stderr)["error"]
    assert error["code"] == "invalid"
    assert error["exit_code"] == 2
    assert Job.objects.count() == 0


def test_unknown_parameters_of_an_environment_name_the_choices(shell: Shell, tmp_path: Path) -> None:
    spec = tmp_path / "spec.json"
    for name, choices in (("running_sums", "median_terms, sigma"), ("reasoning_gym", "allow_negation, max_digits")):
        spec.write_text(json.dumps({"name": "x", "environment": {"name": name, "params": {"terms": 3}}}))
        shown = " ".join(shell("submit", str(spec), code=2).stderr.split())
        assert "/spec/environment/params/terms" in shown and f"choose from {choices}" in shown
    assert Job.objects.count() == 0


@pytest.mark.parametrize("suffix", ["json", "toml", "yaml", "-"])
def test_a_spec_is_submitted_from_every_kind_of_file(shell: Shell, tmp_path: Path, suffix: str) -> None:
    texts = {"toml": 'name = "Sums"\ntraining.steps = 7', "yaml": "name: Sums\ntraining: {steps: 7}"}
    text = texts.get(suffix, '{"name": "Sums", "training": {"steps": 7}}')
    if suffix == "-":
        job_id = shell("submit", "-", "--pool", "local-cpu", "--project", "First steps", input=text).stdout.strip()
    else:
        (tmp_path / f"spec.{suffix}").write_text(text)
        job_id = shell("submit", str(tmp_path / f"spec.{suffix}")).stdout.strip()
    assert Job.objects.get(pk=job_id).spec["training"]["steps"] == 7


def test_wrong_use_of_submit_is_told(shell: Shell, tmp_path: Path) -> None:
    shell("submit", code=2)
    shell("submit", str(tmp_path / "absent.json"), code=2)
    shell("submit", "--template", "absent", code=3)
    shell("submit", "--template", "running_sums", "--project", "Nobody's", code=2)
    shell("submit", "--template", "running_sums", "--pool", "absent", code=2)


def test_the_same_idempotency_key_is_the_same_job(shell: Shell) -> None:
    same = ("submit", "--template", "running_sums", "--idempotency-key", "tuesday")
    assert shell(*same).stdout == shell(*same).stdout
    assert "Idempotency-Key" in shell(*same, "--name", "other", code=2).stderr


def test_jobs_are_listed_shown_and_refused(shell: Shell, world: World) -> None:
    first, second = submitted(world, tags=["a"]), submitted(world, name="Other one")
    assert {job["id"] for job in shell.json("list")} == {first.pk, second.pk}
    assert [job["id"] for job in shell.json("list", "--name", "other")] == [second.pk]
    assert [job["id"] for job in shell.json("list", "--tag", "a")] == [first.pk]
    assert shell.json("list", "--state", "running") == []
    assert len(shell.json("list", "-n", "1")) == 1
    assert shell.json("show", first.pk)["name"] == "Running sums"
    assert "Running sums" in shell("show", first.pk).stdout
    shell("show", "job_absent", code=3)
    shell("list", "--state", "sleeping", code=2)


def test_a_list_longer_than_a_page_comes_whole(shell: Shell, world: World) -> None:
    for number in range(103):
        submitted(world, name=f"Job {number}")
    names = [job["name"] for job in shell.json("list", "-n", "1000")]
    assert names == [f"Job {number}" for number in reversed(range(103))]


def test_another_teams_job_is_not_found(
    newcomer: Shell, server: Server, world: World, key_of: Callable[..., str]
) -> None:
    job = submitted(world)
    newcomer.environment |= {"LAMINAR_URL": server.url, "LAMINAR_API_KEY": key_of(world.outsider)}
    for command in ("show", "explain", "cancel", "events", "logs", "checkpoints", "usage", "watch"):
        newcomer(command, job.pk, code=3)


def test_a_viewer_may_look_and_not_touch(
    newcomer: Shell, server: Server, world: World, key_of: Callable[..., str]
) -> None:
    job = submitted(world)
    newcomer.environment |= {"LAMINAR_URL": server.url, "LAMINAR_API_KEY": key_of(world.viewer)}
    newcomer("show", job.pk)
    assert "jobs:write" in newcomer("cancel", job.pk, code=4).stderr
    newcomer("kill", job.pk, code=4)


def test_pause_resume_cancel_retry_and_kill(shell: Shell, world: World) -> None:
    job = running(world, steps_done=2)
    assert shell.json("pause", job.pk)["state"] == "pausing"
    assert "is pausing" in shell("resume", job.pk).stdout, "it resumes by itself after its pause"
    assert "is cancelled" in shell("kill", job.pk).stdout
    again = shell.json("retry", job.pk, "--from", "start", "--set", "training.steps=9")
    assert (again["parent"], again["spec"]["training"]["steps"]) == (job.pk, 9)
    assert "invalid_state" in shell("retry", again["id"], "--json", code=5).stderr
    assert "is cancelled" in shell("cancel", again["id"]).stdout
    done = finished(world, steps=2)
    shell("cancel", done.pk, code=5)


def test_a_failed_job_is_explained(shell: Shell, world: World) -> None:
    job = failed(world)
    told = shell("explain", job.pk).stdout
    assert "class: config" in told
    assert "advice: Fix the spec" in told
    assert shell.json("explain", job.pk)["failure"]["failure_class"] == "config"


@pytest.mark.parametrize(("state", "code"), [("succeeded", 0), ("failed", 1)])
def test_watch_and_wait_end_with_the_jobs_outcome(shell: Shell, world: World, state: str, code: int) -> None:
    job = running(world, steps_done=3)
    ended(job, JobState(state), message="It is over.", failure_class="" if state == "succeeded" else "reward")
    watched = shell("watch", job.pk, code=code).stdout
    assert "step 3/120" in watched
    assert f"{state}: It is over." in watched
    assert state in shell("wait", job.pk, code=code).stdout
    last = json.loads(shell("watch", job.pk, "--json", code=code).stdout.splitlines()[-1])
    assert last["job"]["state"] == state
    assert last["latest"]["reward/mean"][0] == 3


def test_wait_gives_up_in_time(shell: Shell, world: World) -> None:
    shell("wait", submitted(world).pk, "--timeout", "0.1", code=5)


def test_ctrl_c_ends_the_looking_and_not_the_job(shell: Shell, world: World) -> None:
    job = submitted(world)
    looking = shell.start("watch", job.pk)
    assert looking.stdout is not None
    assert "submitted" in looking.stdout.readline()
    looking.send_signal(signal.SIGINT)
    _, notes = looking.communicate(timeout=20)
    assert looking.returncode == 130
    assert f"laminar watch {job.pk}" in notes
    assert "Traceback" not in notes
    assert Job.objects.get(pk=job.pk).state == JobState.QUEUED


def test_events_logs_metrics_and_trajectories(shell: Shell, world: World) -> None:
    job = running(world, steps_done=3)
    write_lines(job, "one", "two " + HOSTILE)
    seqs = [json.loads(line)["seq"] for line in shell("events", job.pk, "--json").stdout.splitlines()]
    assert seqs == list(range(1, job.events.count() + 1))
    assert "queued → starting" in shell("events", job.pk).stdout
    assert json.loads(shell("logs", job.pk, "--json").stdout.splitlines()[0])["message"] == "one"
    assert "two" in shell("logs", job.pk, "--grep", "TWO").stdout
    assert "one" not in shell("logs", job.pk, "--grep", "TWO").stdout
    assert "train/loss" in shell("metrics", job.pk).stdout
    assert len(shell.json("metrics", job.pk, "train/loss")["series"]["train/loss"]) == 3
    told = job.trajectories.filter(step=2).count()
    assert len(shell.json("trajectories", job.pk, "--step", "2")) == told > 1
    assert shell.json("trajectories", job.pk, "--search", "nobody-says-this") == []


def test_followed_events_and_logs_end_with_the_job(shell: Shell, world: World) -> None:
    job = running(world, steps_done=1)
    write_lines(job, "before")
    following = shell.start("logs", job.pk, "--follow"), shell.start("events", job.pk, "--follow", "--json")
    assert following[0].stdout is not None
    assert "before" in following[0].stdout.readline()
    write_lines(job, "after")
    ended(job, JobState.SUCCEEDED, message="It is over.")
    (lines, _), (events, problems) = (each.communicate(timeout=30) for each in following)
    assert [line.rpartition(" ")[2] for line in lines.splitlines()] == ["after"]
    assert [json.loads(line)["seq"] for line in events.splitlines()] == list(range(1, job.events.count() + 1)), problems


def test_what_users_wrote_never_reaches_the_terminal_raw(shell: Shell, world: World) -> None:
    job = running(world, steps_done=1)
    Job.objects.filter(pk=job.pk).update(name=f"Name {HOSTILE}", message=HOSTILE)
    write_lines(job, HOSTILE)
    for arguments in (["list"], ["show", job.pk], ["logs", job.pk], ["queue"], ["explain", job.pk], ["usage"]):
        for style in ([], ["--json"]):
            printed = shell(*arguments, *style).stdout
            assert not [each for each in "\x1b\x07\x9b\u202e" if each in printed], arguments


def test_checkpoints_are_listed_downloaded_and_promoted(shell: Shell, world: World, tmp_path: Path) -> None:
    job = finished(world, steps=2)
    checkpoint = checkpoint_of(job)
    assert [each["id"] for each in shell.json("checkpoints")] == [checkpoint.pk]
    place = Path(shell("download", job.pk, "--to", str(tmp_path)).stdout.strip())
    assert (place / "model.safetensors").read_bytes() == bytes(range(256)) * 4_000
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith(".laminar")] == []
    shell("download", checkpoint.pk, "--to", str(tmp_path), code=1)  # the target exists already
    packed = shell.json("download", checkpoint.pk, "--to", str(tmp_path), "--tar")["path"]
    assert Path(packed).stat().st_size > 1_000_000
    assert "version 1" in shell("promote", checkpoint.pk, "sums", "--note", "first").stdout
    assert "sums" in shell("models").stdout
    assert shell.json("models", "sums")["versions"][0]["checkpoint"] == checkpoint.pk
    shell("download", "ckpt_absent", code=3)
    shell("download", submitted(world).pk, code=3)


def test_a_changed_file_is_not_taken_for_the_checkpoint(shell: Shell, world: World, tmp_path: Path) -> None:
    checkpoint = checkpoint_of(finished(world, steps=2))
    part = Path(checkpoint.uri.removeprefix("file://")) / "config.json"
    part.write_bytes(b'{"a": 2}')
    assert (
        "config.json differs from the announced size"
        in shell("download", checkpoint.pk, "--to", str(tmp_path), code=1).stderr
    )
    assert list(tmp_path.glob("job_*")) == []


def test_queue_quota_and_usage(shell: Shell, world: World) -> None:
    job = running(world, steps_done=1)
    assert job.pk in shell("queue").stdout
    assert shell.json("queue", "local-cpu")["used"] == 3
    assert "local-cpu" in shell("quota").stdout
    assert shell.json("quota")["pools"][0]["used"] == 3
    assert shell.json("usage", "--by", "day")["total"]["held"] > 0
    shell("queue", "absent", code=2)
    shell("usage", "--from", "2026-02-01", "--to", "2026-01-01", code=2)


def test_keys_are_made_shown_once_and_revoked(shell: Shell, server: Server) -> None:
    made = shell("keys", "create", "robot", "--scope", "jobs:read", "--expires-in", "2d", "--max-devices", "3")
    secret = made.stdout.strip()
    row = ApiKey.objects.get(name="robot")
    assert row.expires_at is not None
    assert abs(row.expires_at - datetime.now(UTC) - timedelta(days=2)) < timedelta(minutes=1)
    shell.secrets.append(secret)
    shell.printed.remove(
        next(said for said in shell.printed if secret in said)
    )  # the one intended output of the secret
    assert "robot" in shell("keys").stdout
    mine = shell.environment["LAMINAR_API_KEY"]
    shell.environment["LAMINAR_API_KEY"] = secret
    shell("list")
    shell("submit", "--template", "running_sums", code=4)
    shell.environment["LAMINAR_API_KEY"] = mine
    shell("keys", "revoke", row.pk)
    shell.environment["LAMINAR_API_KEY"] = secret
    shell("list", code=4)


def test_a_ceiling_is_a_limit(shell: Shell) -> None:
    made = shell("keys", "create", "small", "--scope", "jobs:write", "--scope", "jobs:read", "--max-devices", "2")
    shell.environment["LAMINAR_API_KEY"] = made.stdout.strip()
    assert "max_devices" in shell("submit", "--template", "running_sums", code=6).stderr


@pytest.mark.parametrize("name", ["bash", "zsh", "fish"])
def test_completion_has_a_script_for_every_shell(shell: Shell, name: str) -> None:
    assert "_LAMINAR_COMPLETE" in shell("completion", name).stdout


@pytest.mark.long
def test_completion_offers_job_ids_and_asks_only_once_in_a_while(shell: Shell, world: World, tmp_path: Path) -> None:
    job = submitted(world)
    Job.objects.filter(pk=job.pk).update(name="Evil \x1b[2J\nname")
    asking = {"_LAMINAR_COMPLETE": "zsh_complete", "COMP_WORDS": "laminar show job_", "COMP_CWORD": "2"}

    def complete() -> str:
        environment = dict(shell.environment)
        shell.environment |= asking
        process = shell.start()
        shell.environment = environment
        told, problems = process.communicate(timeout=30)
        assert problems == ""
        return told

    assert job.pk in complete()
    later = submitted(world)
    assert later.pk not in complete(), "the cache is valid for seconds"
    assert "\x1b" not in complete()
    kept = list((tmp_path / "cache").rglob("*.json"))
    assert [path.stat().st_mode & 0o777 for path in kept] == [0o600]
    kept[0].write_text(json.dumps(json.loads(kept[0].read_text()) | {"at": 0}))
    assert later.pk in complete()
    asking["COMP_WORDS"] = "laminar canc"
    asking["COMP_CWORD"] = "1"
    assert "cancel" in complete()


def test_completion_without_a_server_says_nothing(shell: Shell) -> None:
    shell.environment |= {
        "LAMINAR_URL": "http://127.0.0.1:9", "_LAMINAR_COMPLETE": "bash_complete",
        "COMP_WORDS": "laminar show job_", "COMP_CWORD": "2",
    }  # fmt: skip
    told, problems = shell.start().communicate(timeout=30)
    assert (told.strip(), problems) == ("", "")


def test_output_for_programs_has_no_colour_and_is_never_cut(shell: Shell, world: World) -> None:
    submitted(world, name="w" * 120)
    printed = shell("list").stdout
    assert "w" * 120 in printed
    assert "\x1b" not in printed
