"""An old driver with a new control plane, and the reverse: expand, then contract."""

import copy
import json
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
from django.test import Client

from backend.jobs.attempts.tokens import attempt_token
from backend.jobs.models import Job, JobAttempt, JobState
from engine.spec.control import HeartbeatReply
from tests.backend.upgrade.wire import FOLDER, breaks, present

RELEASES = sorted(FOLDER.glob("wire-*.json"))
Document = dict[str, Any]


def test_every_release_since_the_first_is_held() -> None:
    assert RELEASES[0].name == "wire-0.1.0.json"


@pytest.mark.parametrize("release", RELEASES, ids=lambda path: path.stem)
def test_messages_of_former_releases_are_understood(release: Any) -> None:
    """Specs inside an order have their own compatibility rules; everything else only grows."""
    before, now = json.loads(release.read_text()), present()
    assert [fault for name in before for fault in breaks(before[name], now[name]) if "Spec." not in fault] == []


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        (lambda beat: beat["properties"].pop("step"), "Heartbeat.step is gone"),
        (lambda beat: beat["required"].append("turns"), "Heartbeat.turns is required"),
        (lambda beat: beat["required"].remove("step"), "Heartbeat.step may be omitted"),
        (lambda beat: beat["properties"]["step"].update(type="string"), "Heartbeat.step was"),
    ],
)
def test_a_change_that_would_break_a_running_job_is_found(fault: Callable[[Document], object], found: str) -> None:
    changed = copy.deepcopy(present()["Heartbeat"])
    fault(changed)  # type: ignore[arg-type]
    assert any(line.startswith(found) for line in breaks(present()["Heartbeat"], changed))


@pytest.mark.parametrize("model", ["PlatformCause", "PhaseChanged"])
def test_closed_list_of_facts_may_grow_and_not_shrink(model: str) -> None:
    """Its reader passes over values that it does not know."""
    before = present()["FactBatch"]
    grown, shrunk = copy.deepcopy(before), copy.deepcopy(before)
    _choices_of(grown, model).append("later")
    _choices_of(shrunk, model).pop()
    assert list(breaks(before, grown)) == []
    assert [line.partition(" ")[0].partition(".")[0] for line in breaks(before, shrunk)] == [model]


def _choices_of(schema: Any, model: str) -> list[str]:
    definition = schema["$defs"][model]
    choices: list[str] = definition.get("enum") or definition["properties"]["phase"]["enum"]
    return choices


def test_later_driver_works_with_this_control_plane(attempt: JobAttempt, now: datetime) -> None:
    """It sends more: fields in a heartbeat, a batch and a fact, and a fact of an unknown kind."""
    client = Client(headers={"Authorization": f"Bearer {attempt_token(attempt.job_id, attempt.n, attempt.fence)}"})
    about = {"attempt": attempt.n, "fence": attempt.fence, "later": {"x": [1]}}
    bodies = [
        {"type": "driver_started", "host": "h", "pid": 1, "later": 1},
        {"type": "moon_seen", "phase": "full"},
        {"type": "pipeline_ready", "num_replicas": 2, "num_parameters": 1},
        {"type": "run_finished", "outcome": "succeeded", "later": True},
    ]
    facts = [{"seq": seq, "at": now.isoformat(), "body": body, "later": 2} for seq, body in enumerate(bodies, start=1)]

    def post(path: str, body: Document) -> Any:
        return client.post(f"/internal/engine/{path}", json.dumps(body), content_type="application/json")

    assert post("heartbeat", about | {"step": 0, "turns": 3, "moons": 1}).status_code == 200
    assert post("facts", about | {"facts": facts}).json()["acked"] == 4
    assert Job.objects.get().state == JobState.SUCCEEDED


def test_later_control_plane_works_with_this_driver() -> None:
    reply = {"requests": [{"id": "a", "kind": "dance"}, {"id": "b", "kind": "pause", "when": "now"}], "later": 1}
    understood = HeartbeatReply.model_validate_json(json.dumps(reply))
    assert [(request.id, request.kind) for request in understood.requests] == [("b", "pause")]
