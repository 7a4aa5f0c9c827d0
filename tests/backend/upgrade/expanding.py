"""Migrations that old code survives: it runs while they are applied, and after, until it is replaced.

Old code inserts without a new column, so that has a default in the database or may be NULL. Nothing that old code uses
is removed or renamed. For operations opaque to Django (SQL, Python), the Migration states `expands = "why"`.
"""

from collections.abc import Iterator
from typing import Final

from django.db import migrations
from django.db.migrations.operations.base import Operation
from django.db.models import NOT_PROVIDED, Field

HARMLESS: Final = (
    migrations.CreateModel,
    migrations.AddIndex,
    migrations.RemoveIndex,
    migrations.RemoveConstraint,
    migrations.AlterModelOptions,
    migrations.AlterModelManagers,
    migrations.AlterModelTableComment,
)


def what_old_code_would_miss(migration: migrations.Migration, made: frozenset[str] = frozenset()) -> Iterator[str]:
    """`made`: models created by migrations that no released code knows."""
    new = set(made)
    for operation in migration.operations:
        if isinstance(operation, migrations.CreateModel):
            new.add(operation.name.lower())
        model = str(getattr(operation, "model_name", "") or getattr(operation, "name", "")).lower()
        if model in new or isinstance(operation, HARMLESS):
            continue
        if why := _why_not(operation, migration):
            yield f"{migration.app_label}.{migration.name}: {why}"


def _why_not(operation: Operation, migration: migrations.Migration) -> str:
    match operation:
        case migrations.AddField():
            return _why_not_added(operation.name, operation.field)
        case migrations.RunSQL() | migrations.RunPython() | migrations.AddConstraint() | migrations.AlterField():
            says_why = bool(getattr(migration, "expands", ""))
            return "" if says_why else f'{operation.describe()}: state `expands = "why old code still works"` too'
    return f"{operation.describe()}: old code still uses it; remove it a release later, and list it in CONTRACTED"


def _why_not_added(name: str, field: "Field[object, object]") -> str:
    has_default = getattr(field, "db_default", NOT_PROVIDED) is not NOT_PROVIDED
    if field.null or has_default or field.many_to_many:
        return ""
    return f"AddField {name}: old code inserts without it; give it a db_default, or null=True"
