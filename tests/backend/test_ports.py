"""Calls of an app into one above it: declared below, filled above, and nowhere else."""

import ast
import importlib
import pkgutil
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from django.apps import apps
from django.db.models import Model

import backend
from backend import ports
from backend.ports import Port, UnfilledPort, refuse_unfilled

ROOT = Path(backend.__file__).resolve().parent
# Words of one app that are also Django's name of a relation of an app above it.
OTHER_WORDS = {
    ("pools", "usage"): "what a team uses of a pool: a field of TeamView",
    ("pools", "jobs"): "the jobs of a plan: a property of decide's own",
    ("jobs", "usage"): "what a team uses of a pool: a field of TeamView",
}


class Relation(NamedTuple):
    app: str
    """The app that has the relation without naming it."""
    name: str
    owner: str
    """The app above it, which declares it."""


def height_of_apps() -> dict[str, int]:
    """As in the import contract, the lowest first."""
    contracts = tomllib.loads((ROOT.parent / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    nouns = next(contract for contract in contracts if contract["name"].startswith("Backend nouns"))
    rows = enumerate(reversed(nouns["layers"]))
    return {name.strip().removeprefix("backend."): row for row, names in rows for name in names.split("|")}


def models_of_ours() -> list[type[Model]]:
    return [model for model in apps.get_models() if model.__module__.startswith("backend.")]


def relations_from_above() -> set[Relation]:
    height, ours = height_of_apps(), models_of_ours()
    relations = {
        Relation(model._meta.app_label, related.get_accessor_name() or "", related.related_model._meta.app_label)
        for model in ours
        for related in model._meta.related_objects
        if related.related_model in ours and not related.hidden
    }
    return {relation for relation in relations if height[relation.owner] > height[relation.app]}


def modules_of_apps() -> Iterator[tuple[str, Path]]:
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).parts
        if len(parts) > 1 and "migrations" not in parts:
            yield parts[0], path


def names_used(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Attributes, and the relations in a query's keywords and texts."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield node.lineno, node.attr
        elif isinstance(node, ast.keyword) and node.arg:
            yield from ((node.value.lineno, word) for word in node.arg.split("__"))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "__" in node.value:
            yield from ((node.lineno, word) for word in node.value.split("__"))


def texts(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def reached_through_relations(app: str, tree: ast.Module, relations: set[Relation]) -> Iterator[str]:
    height = height_of_apps()
    for line, name in names_used(tree):
        for relation in relations:
            if name == relation.name and height[relation.owner] > height[app] and (app, name) not in OTHER_WORDS:
                yield f"{line}: .{name} is of {relation.owner}"


def reached_through_tables(app: str, tree: ast.Module, owners: dict[str, str]) -> Iterator[str]:
    height = height_of_apps()
    for line, text in texts(tree):
        for table, owner in owners.items():
            if height[owner] > height[app] and re.search(rf"\b{table}\b", text):
                yield f"{line}: the table {table} is of {owner}"


@pytest.mark.long
def test_no_app_reaches_through_the_database_into_one_above_it() -> None:
    relations = relations_from_above()
    owners = {model._meta.db_table: model._meta.app_label for model in models_of_ours()}
    hidden_edges = []
    for app, path in modules_of_apps():
        tree = ast.parse(path.read_text())
        hidden = [*reached_through_relations(app, tree, relations), *reached_through_tables(app, tree, owners)]
        hidden_edges += [f"{path.relative_to(ROOT.parent)}:{each}" for each in hidden]
    assert not hidden_edges, "an edge that no import shows; make it a port (backend/ports.py): " + "; ".join(
        hidden_edges
    )


@pytest.mark.parametrize(
    "code",
    [
        "job.checkpoints.filter(pk=1)",
        "Job.objects.filter(checkpoints__pk=1)",
        "Job.objects.values_list('series__name')",
        "db.execute('SELECT 1 FROM telemetry_metricpoint')",
    ],
)
def test_a_hidden_edge_is_seen(code: str) -> None:
    tree = ast.parse(code)
    owners = {model._meta.db_table: model._meta.app_label for model in models_of_ours()}
    through_relations = reached_through_relations("jobs", tree, relations_from_above())
    assert [*through_relations, *reached_through_tables("jobs", tree, owners)]


def test_every_port_is_filled_when_the_site_has_started() -> None:
    for module in pkgutil.walk_packages(backend.__path__, "backend."):
        if not {"migrations", "management"} & set(module.name.split(".")):
            importlib.import_module(module.name)  # an unimported port would not be known
    assert len(ports._declared) >= 5
    refuse_unfilled()


@pytest.mark.long
@pytest.mark.parametrize(
    ("app", "loses"),
    [("jobs", "the project of a job"), ("checkpoints", "where jobs resume"), ("telemetry", "the last lines of an")],
)
def test_a_web_process_whose_apps_fill_no_port_does_not_start(app: str, loses: str) -> None:
    script = f"from backend.{app} import apps; apps.{app.title()}Config.ready = lambda self: None; import backend.asgi"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True)
    assert done.returncode != 0 and "UnfilledPort" in done.stderr and loses in done.stderr


def test_unfilled_and_doubly_filled_ports_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "_declared", [])
    port: Port[int] = Port("what nobody has")
    with pytest.raises(UnfilledPort, match="what nobody has"):
        port()
    with pytest.raises(UnfilledPort, match="what nobody has"):
        refuse_unfilled()
    port.fill(1)
    refuse_unfilled()
    assert port() == 1
    with pytest.raises(AssertionError, match="two apps"):
        port.fill(2)
