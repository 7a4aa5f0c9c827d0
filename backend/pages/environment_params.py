"""The parameters that the chosen environment takes, for whoever types them: name, kind, default, and what is typed.

Invariant: what is offered is what `engine.spec.environment_params` would take, and is put into the field as it would be
typed there: one `name = value` a line.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from backend.pages.spec_fields import setting_text, settings_of
from engine.spec.environment_params import ENVIRONMENTS, Param


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedParam:
    name: str
    about: str
    rule: str
    default: str
    """As it would be typed; empty: none."""
    is_required: bool
    is_typed: bool
    values: Sequence[str] = ()
    """Those among which one is chosen, as they would be typed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedParams:
    environment: str
    title: str
    params: Sequence[OfferedParam]
    is_open: bool
    """Further ones go on to what it runs."""


def offered_params(environment: str, typed: str, data: Sequence[str]) -> OfferedParams | None:
    """None: there is no such environment. `data`: names of data sets that may be named here."""
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
    found = data if row.kind == "file" else row.choices if row.kind == "choice" else ()
    return [setting_text(each) for each in found if each]
