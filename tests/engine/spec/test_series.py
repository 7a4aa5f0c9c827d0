"""The table of series and all places that name, measure or document one."""

import re
from functools import partial
from itertools import chain
from pathlib import Path

import pytest

from backend.pages.job.panels.charts import CHARTS, EVERY_KEY, Chart, Trace
from backend.verdicts.rules import series as rules
from engine.spec.facts import StepTrained
from engine.spec.series import SERIES, Series, find_series, label_of
from engine.spec.series_table import DOCUMENT, document
from frontend.client.laminar_client.cli.watching import SHOWN_SERIES

ROOT = Path(__file__).parents[3]
ROWS = tuple(chain.from_iterable(SERIES.values()))
READERS = ("backend", "engine", "frontend", "infra", "tests/frontend", "tests/e2e")
STAND_INS = ("engine/sim", "engine/bench", "engine/spec")
"""The simulator's trainer and the benches make numbers of their own."""


def read_sources(*tops: str) -> dict[str, str]:
    paths = sorted(chain.from_iterable((ROOT / top).rglob("*.py") for top in tops))
    return {str(path.relative_to(ROOT)): path.read_text() for path in paths}


def keys_of(source: str) -> set[str]:
    """The names in a module that are written as the key of a dict or of an assignment."""
    return set(re.findall(r'"([a-z]+/[a-z0-9_]+(?:/[a-z0-9_]+)*)"(?:: |\] = )', source))


def patterns_of(source: str) -> list[str]:
    """The names that a module composes."""
    composed = re.findall(r'f"([a-z]+/[^"]*\{[^"]*)"', source)
    return [re.sub(r"\{.*?\}", "[a-z0-9_*]*", name) for name in composed]


def test_no_series_belongs_to_two_rows() -> None:
    names = [row.name for row in ROWS]
    assert len(set(names)) == len(names)
    assert not [name for name in names for row in ROWS if row.name != name and row.matches(name.replace("*", "x"))]
    StepTrained(step=1, metrics={name.replace("*", "x"): 0.0 for name in names})  # each is the name of a metric


def test_family_has_members_of_one_further_word() -> None:
    family = Series("a/part/*", "", "parts")
    assert family.matches("a/part/x_1")
    assert not family.matches("a/part/") and not family.matches("a/part/x/y") and not family.matches("a/part_x")


def test_series_is_measured_by_the_declared_module_alone() -> None:
    sources = {
        path: text
        for path, text in read_sources("engine", "backend/telemetry").items()
        if not path.startswith(STAND_INS)
    }
    measured = {(path, name) for path, text in sources.items() for name in keys_of(text)}
    declared = {(module, row.name) for module, rows in SERIES.items() for row in rows}
    first_words = {name.partition("/")[0] for _, name in declared}
    assert {each for each in measured if each[1].partition("/")[0] in first_words} <= declared
    unmeasured = [
        name
        for module, name in declared - measured
        if f'"{name}"' not in sources[module]
        and not any(re.fullmatch(pattern, name) for pattern in patterns_of(sources[module]))
    ]
    assert not unmeasured


def test_every_named_series_is_declared() -> None:
    first_words = "|".join(sorted({row.name.partition("/")[0] for row in ROWS}))
    name = re.compile(rf'"((?:{first_words})(?:/[a-z][a-z0-9_]*)*/[a-z][a-z0-9_]*[a-z0-9])"')
    named = {(path, found) for path, text in read_sources(*READERS).items() for found in name.findall(text)}
    assert {found for _, found in named} >= set(rules.OF_THE_LAST_STEPS)
    assert not [(path, found) for path, found in named if not any(row.matches(found) for row in ROWS)]


def test_chart_of_an_undeclared_series_or_of_two_units_is_refused() -> None:
    assert all(find_series(key) for key in EVERY_KEY)
    assert {chart.slug: chart.unit for chart in CHARTS}.items() >= {
        "entropy": "nats",
        "loss": "",
        "calls": "calls",
    }.items()
    chart = partial(Chart, slug="x", title="X", formula="x", about="x")
    with pytest.raises(KeyError, match="reward/median"):
        chart(traces=(Trace(key="reward/median", label="x"),))
    with pytest.raises(ValueError, match="one unit"):
        chart(traces=(Trace(key="reward/mean", label="x"), Trace(key="train/entropy", label="y")))


def test_watch_prints_the_labels_of_the_table() -> None:
    assert {name: find_series(name).label for name in SHOWN_SERIES} == SHOWN_SERIES


def test_evidence_is_labelled_with_its_unit() -> None:
    assert label_of("train/entropy") == "entropy, nats" and label_of("reward/mean") == "reward"
    assert label_of("reward/part/form") == "reward/part/form" and label_of("of/another_release") == "of/another_release"
    evidence = set()
    for text in read_sources("backend/verdicts/rules").values():
        for names in re.findall(r"evidence=\(([^)]*)\)", text):
            evidence |= set(re.findall(r'"([^"]+)"', names))
    assert len(evidence) > 10
    assert not [name for name in evidence if label_of(name) == name]


def test_document_lists_the_table() -> None:
    assert DOCUMENT.read_text() == document(), "python -m engine.spec.series_table"
    assert not [row for row in ROWS if "|" in row.meaning or row.meaning.endswith(".")]
