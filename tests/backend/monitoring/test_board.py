"""Every panel of the Grafana board uses metrics of /metrics, and shows data of a working site."""

import json
import re
import time
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils.timezone import now

from backend.jobs.models import Job, JobAttempt
from backend.operating.models import Examination
from backend.pools.models import ClusterProbe, ResourcePool
from backend.pulses import BEAT, CANARY
from backend.telemetry.intake.delay import note_delay
from engine.spec.facts import DriverStarted, Fact
from tests.backend.monitoring.promql import History, names_in, value_of
from tests.backend.monitoring.scraped import EVERY_S, ROOT, RULES, after, scrape
from tests.backend.test_pulses import beaten

BOARD: dict[str, Any] = json.loads((ROOT / "infra/monitoring/grafana.json").read_text())
QUERIES = {
    f"{panel['title']} {target['refId']}": target["expr"].replace("$pool", ".*")
    for panel in BOARD["panels"]
    for target in panel["targets"]
}
LEGENDS = {
    f"{panel['title']} {target['refId']}": set(re.findall(r"{{(\w+)}}", target.get("legendFormat", "")))
    for panel in BOARD["panels"]
    for target in panel["targets"]
}


@pytest.fixture
def history(attempt: JobAttempt, pool: ResourcePool, make_job: Any) -> History:
    """A site with a running and a waiting job, and occasional requests."""
    make_job()
    Job.objects.filter(pk=attempt.job_id).update(started_at=now() - timedelta(minutes=5))
    for name in (BEAT, CANARY):
        beaten(name, ago_s=2)
    ClusterProbe.objects.create(pool=pool, at=now(), seen_at=now(), devices=8, promised=8)
    Examination.objects.create(pk="store", began_at=now(), ended_at=now(), parts=[])

    def lives() -> None:
        Client().get("/healthz")
        note_delay([Fact(seq=1, at=now(), body=DriverStarted(host="h", pid=1))], now=now())

    lives()
    before = scrape()
    lives()
    return after(before, scrape(), at=time.time())


def test_every_query_uses_existing_metrics_and_has_data(history: History) -> None:
    metrics = {name for _, samples in history for name in samples}
    at = history[-1][0] - 300 - EVERY_S  # within five minutes of what has just happened
    for title, expression in QUERIES.items():
        assert names_in(expression) and names_in(expression) <= metrics, title
        assert value_of(expression, history, at) != {}, title


def test_a_legend_tells_every_curve_of_its_panel_from_the_others(history: History) -> None:
    at = history[-1][0] - 300 - EVERY_S
    for title, expression in QUERIES.items():
        shown = value_of(expression, history, at)
        assert isinstance(shown, dict), title
        names = [{key: text for key, text in labels if key in LEGENDS[title]} for labels in shown]
        assert all(set(name) == LEGENDS[title] for name in names), title
        assert len({tuple(sorted(name.items())) for name in names}) == len(names), title


@pytest.mark.parametrize("expression", [*QUERIES.values(), *(rule["expr"] for rule in RULES.values())])
def test_counters_and_only_counters_are_queried_by_rate(expression: str) -> None:
    rates = set(re.findall(r"(?:rate|increase)\((\w+)", expression))
    assert rates == {name for name in names_in(expression) if name.endswith(("_total", "_sum", "_count", "_bucket"))}


def test_every_documented_metric_is_exported(history: History) -> None:
    named = set(re.findall(r"`(laminar_[a-z_]+)", (ROOT / "infra/OPERATING.md").read_text()))
    assert named and named <= {name for _, samples in history for name in samples}


def test_the_choice_of_pools_is_of_a_metric_with_that_label(history: History) -> None:
    (query,) = [each["query"]["query"] for each in BOARD["templating"]["list"] if each["name"] == "pool"]
    name, label = query.removeprefix("label_values(").removesuffix(")").split(", ")
    assert {dict(labels)[label] for labels in history[-1][1][name]} == {"small"}


def test_panels_are_told_apart_and_lie_beside_each_other() -> None:
    panels = BOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells)) and max(x for x, _ in cells) < 24
    assert {target["datasource"]["uid"] for panel in panels for target in panel["targets"]} == {"${datasource}"}
