"""The parameters of the selected environment, for the form: name, kind, default, and the values already entered.

Invariant: every offered value is valid for `engine.spec.environments.params`, and is inserted into the field in the
form's syntax: one `name = value` per line.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from backend.pages.new_job.spec_fields import setting_text, settings_of
from engine.spec.environments.params import ENVIRONMENTS, Param


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedParam:
    name: str
    about: str
    rule: str
    default: str
    """In the field's syntax; empty: none."""
    is_required: bool
    is_typed: bool
    values: Sequence[str] = ()
    """The allowed values, in the field's syntax."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedParams:
    environment: str
    title: str
    params: Sequence[OfferedParam]
    is_open: bool
    """Further parameters are passed to the code that the environment runs."""


def offered_params(environment: str, typed: str, data: Sequence[str]) -> OfferedParams | None:
    """None: unknown environment. `data`: names of the available data sets."""
    entry = ENVIRONMENTS.get(environment)
    if entry is None:
        return None
    said = settings_of(typed)
    return OfferedParams(
        environment=environment,
        title=entry.title,
        is_open=entry.is_open,
        params=[
            OfferedParam(
                name=name,
                about=row.about,
                rule="" if row.kind in ("text", "file") else row.rule,
                default="" if row.default == "" else setting_text(row.default),
                is_required=row.is_required,
                is_typed=name in said,
                values=_values(row, data),
            )
            for name, row in entry.params.items()
        ],
    )


def _values(row: Param, data: Sequence[str]) -> list[str]:
    values = data if row.kind == "file" else row.choices if row.kind == "choice" else ()
    return [setting_text(each) for each in values if each]
