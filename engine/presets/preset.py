"""One preset: the value of a setting that a spec leaves out, with its reason."""

from dataclasses import dataclass

Value = float | int | str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    path: str
    value: Value
    """None: the setting's own empty value."""
    reason: str
