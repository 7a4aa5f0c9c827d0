"""Every migration since the first release only adds: old code runs on the new schema."""

from collections.abc import Iterable
from typing import Final

import pytest
from django.db import connection, migrations, models
from django.db.migrations.loader import MigrationLoader

from tests.backend.upgrade.expanding import what_old_code_would_miss

FIRST_RELEASE: Final = {"jobs": 2}
"""0.1.0: migrations of an app up to this number may do anything; for every other app, the first."""
CONTRACTED: Final[frozenset[str]] = frozenset()
"""app.migration that removes something unused by every release that may still run."""


def since_the_first_release() -> list[migrations.Migration]:
    every_migration = MigrationLoader(None, ignore_no_migrations=True).disk_migrations.values()
    ours = [migration for migration in every_migration if migration.app_label in _apps()]
    return sorted(
        (each for each in ours if int(each.name[:4]) > FIRST_RELEASE.get(each.app_label, 1)),
        key=lambda each: (each.app_label, each.name),
    )


def _apps() -> set[str]:
    from django.apps import apps

    return {config.label for config in apps.get_app_configs() if config.name.startswith("backend.")}


def test_old_code_works_after_every_later_migration() -> None:
    created: set[str] = set()
    missed: list[str] = []
    for migration in since_the_first_release():
        if f"{migration.app_label}.{migration.name}" not in CONTRACTED:
            missed += what_old_code_would_miss(migration, frozenset(created))
        created |= {each.name.lower() for each in migration.operations if isinstance(each, migrations.CreateModel)}
    assert missed == []


def migration_of(*operations: migrations.operations.base.Operation) -> migrations.Migration:
    planted = type("Migration", (migrations.Migration,), {"operations": list(operations)})
    return planted("9999_planted", "jobs")  # type: ignore[no-any-return]  # a class made here


@pytest.mark.parametrize(
    "operation",
    [
        migrations.RemoveField("job", "name"),
        migrations.RenameField("job", "name", "title"),
        migrations.DeleteModel("Job"),
        migrations.RenameModel("Job", "Run"),
        migrations.AlterModelTable("job", "runs"),
        migrations.AddField("job", "size", models.IntegerField(default=0)),
        migrations.AlterField("job", "name", models.IntegerField()),
        migrations.RunSQL("DROP TABLE jobs_job"),
    ],
    ids=lambda operation: type(operation).__name__,
)
def test_what_takes_something_from_old_code_is_found(operation: migrations.operations.base.Operation) -> None:
    assert list(what_old_code_would_miss(migration_of(operation)))


@pytest.mark.parametrize(
    "operations",
    [
        [migrations.AddField("job", "size", models.IntegerField(null=True))],
        [migrations.AddField("job", "size", models.IntegerField(db_default=0))],
        [
            migrations.CreateModel("Cat", [("id", models.BigAutoField(primary_key=True))]),
            migrations.AddField("cat", "age", models.IntegerField(default=1)),
        ],
    ],
)
def test_what_old_code_need_not_know_is_let_through(
    operations: Iterable[migrations.operations.base.Operation],
) -> None:
    assert not list(what_old_code_would_miss(migration_of(*operations)))


@pytest.mark.django_db
def test_old_code_writes_rows_of_jobs_on_the_new_schema() -> None:
    """Every newer column has a value by default: the previous release does not know it."""
    added = [
        (each.model_name, each.name)
        for migration in since_the_first_release()
        for each in migration.operations
        if isinstance(each, migrations.AddField)
    ]
    with connection.cursor() as db:
        db.execute(
            "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'public'"
            " AND is_nullable = 'NO' AND column_default IS NULL AND is_identity = 'NO'"
        )
        needed = {(table.rpartition("_")[2], column.removesuffix("_id")) for table, column in db.fetchall()}
    new_models = {
        each.name.lower()
        for migration in since_the_first_release()
        for each in migration.operations
        if isinstance(each, migrations.CreateModel)
    }
    assert {(model, name) for model, name in added if model not in new_models} & needed == set()
