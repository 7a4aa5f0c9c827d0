"""The event log as sentences.

Invariant: an event of an unknown kind is shown by its type and message, never left out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from backend.accounts.models import ApiKey, User
from backend.jobs.models import Job, JobEvent
from backend.pages.job.panels.folded_texts import headline_of
from backend.pages.templatetags.laminar import number, reward, size

Tone = Literal["plain", "good", "warn", "bad"]
_TONES: Mapping[str, Tone] = {
    "fault_detected": "bad",
    "stalled": "bad",
    "alarm_raised": "bad",
    "alarm_ended": "good",
    "failed": "bad",
    "recovering": "warn",
    "stopping": "warn",
    "succeeded": "good",
    "running": "good",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EventSentence:
    seq: int
    at: datetime
    type: str
    tone: Tone
    from_state: str
    to_state: str
    sentence: str
    actor: str


def event_sentences_of(events: Sequence[JobEvent], job: Job) -> list[EventSentence]:
    names = _actor_names(events, job)
    return [
        EventSentence(
            seq=event.seq,
            at=event.at,
            type=event.type,
            tone=_TONES.get(event.to_state) or _TONES.get(event.type, "plain"),
            from_state=event.from_state,
            to_state=event.to_state,
            sentence=sentence_of(event),
            actor=names.get(event.actor) or event.actor.replace("engine:", "engine, attempt "),
        )
        for event in events
    ]


def sentence_of(event: JobEvent) -> str:
    data = event.data if isinstance(event.data, dict) else {}
    match event.type:
        case "submitted":
            return f"{_count(data.get('devices'), 'device')} requested"
        case "driver_started":
            return f"on {data.get('host', 'an unnamed host')}"
        case "evaluated":
            return (
                f"held-out reward {reward(data.get('reward_mean'))} ± {data.get('reward_error', 0.0):.3f} with version "
                f"{data.get('version')}{_passed(data)}, {number(data.get('num_prompts'))} prompts"
            )
        case "checkpoint_saved":
            return f"step {data.get('step')}, {size(data.get('num_bytes'))}"
        case "fault_detected":
            parts = (data.get("component"), headline_of(event.message), data.get("action") and f"→ {data['action']}")
            return " · ".join(str(part) for part in parts if part)
        case "run_finished":
            return headline_of(event.message) or event.reason
        case _:
            return headline_of(event.message)


def _passed(data: Mapping[str, Any]) -> str:
    rate = data.get("pass_rate")
    return "" if rate is None else f", pass@{data.get('num_samples', 1)} {reward(rate)} ± {data['pass_error']:.3f}"


def _actor_names(events: Sequence[JobEvent], job: Job) -> dict[str, str]:
    """Names of users and keys, limited to those that can act in the job's team."""
    users = {event.actor.removeprefix("user:") for event in events if event.actor.startswith("user:")}
    keys = {event.actor.removeprefix("key:") for event in events if event.actor.startswith("key:")}
    names = {f"user:{pk}": email for pk, email in _emails({pk for pk in users if pk.isdecimal()})}
    for pk, name, email in ApiKey.objects.filter(pk__in=keys, team=job.team).values_list(
        "id", "name", "created_by__email"
    ):
        names[f"key:{pk}"] = f"{email} by key “{name}”"
    return names


def _emails(pks: set[str]) -> list[tuple[Any, str]]:
    return list(User.objects.filter(pk__in=pks).values_list("pk", "email")) if pks else []


def _count(num: object, noun: str) -> str:
    return f"{num} {noun}" if num == 1 else f"{num} {noun}s"
