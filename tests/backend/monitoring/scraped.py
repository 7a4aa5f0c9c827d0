"""Scrapes of the real /metrics along a timeline, and the alarms that the rules raise over them."""

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml
from django.test import Client
from prometheus_client.parser import text_string_to_metric_families

from tests.backend.monitoring.promql import History, Labels, Samples, value_of

ROOT: Final = Path(__file__).resolve().parents[3]
RULES_FILE: Final = ROOT / "infra/monitoring/rules.yml"
RULES: Final[dict[str, dict[str, Any]]] = {
    rule["alert"]: rule
    for group in yaml.safe_load(RULES_FILE.read_text())["groups"]
    for rule in group["rules"]
}  # fmt: skip
EVERY_S: Final = 30
_UNITS: Final = {"s": 1, "m": 60, "h": 3_600}


def scrape() -> Samples:
    answer = Client().get("/metrics")
    assert answer.status_code == 200, answer.content
    families = text_string_to_metric_families(answer.content.decode())
    samples: dict[str, dict[Labels, float]] = defaultdict(dict)
    for family in families:
        for one in family.samples:
            samples[one.name][frozenset(one.labels.items())] = one.value
    return samples


def lasting(samples: Samples, *, at: float, seconds: int = 1_800) -> History:
    """A site in a constant state: ages stay the same."""
    return [(at + later, _later(samples, later)) for later in range(0, seconds, EVERY_S)]


def after(before: Samples, samples: Samples, *, at: float) -> History:
    """As `before` for a while, then as now."""
    return [*lasting(before, at=at - 600, seconds=600), *lasting(samples, at=at, seconds=600)]


def firing(history: History) -> set[str]:
    """The alarms that fire at a given time."""
    return {name for name, rule in RULES.items() if any(_held(rule, history))}


def raised(name: str, history: History) -> set[Labels]:
    """What the alarm is about, whenever its expression holds."""
    values = [value_of(RULES[name]["expr"], history, at) for at, _ in history]
    labels_of = {labels for value in values if isinstance(value, dict) for labels in value}
    assert labels_of, name
    return labels_of


def _held(rule: dict[str, Any], history: History) -> Iterator[bool]:
    amount, unit = re.fullmatch(r"(\d+)([smh])", rule["for"]).groups()  # type: ignore[union-attr]
    wanted_s, since = int(amount) * _UNITS[unit], None
    for at, _ in history:
        if not value_of(rule["expr"], history, at):
            since = None
            continue
        since = at if since is None else since
        yield at - since >= wanted_s


def _later(samples: Samples, seconds: float) -> Samples:
    """Shifts timestamps only; everything else is shared by the scrapes of a constant site."""
    moved = {
        name: {labels: value + seconds for labels, value in of_name.items()}
        for name, of_name in samples.items()
        if name.endswith("_timestamp_seconds")
    }
    return {**samples, **moved}
