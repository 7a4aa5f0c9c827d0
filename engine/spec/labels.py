"""Label selectors over a cluster's hosts, in Ray's syntax.

    {"accelerator": "H100", "zone": "in(a, b)", "lent": "!true", "rack": "!in(r1, r2)"}

Invariants:
- Ray accepts every selector accepted here, and a host matches here if and only if Ray's scheduler would choose it (a
  test compares with a real scheduler);
- a host without the label matches `!…` only.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Final

from pydantic import AfterValidator, Field

from engine.spec.strict import Text

MOST_LABELS: Final = 16
LONGEST_PREFIX: Final = 253
_WORD: Final = r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
_NAME: Final = re.compile(_WORD)
_DNS_PREFIX: Final = re.compile(rf"{_WORD}(?:\.{_WORD})*")
_CHOICE: Final = re.compile(rf"(?P<is_not>!?)(?:in\((?P<several>{_WORD}(?:, ?{_WORD})*)\)|(?P<one>{_WORD}))")


def _well_formed(selector: dict[str, str]) -> dict[str, str]:
    """Validates a selector and removes spaces: Ray 2.60 accepts them, but looks for a value that begins with one."""
    for label, choice in selector.items():
        prefix, _, name = label.rpartition("/")
        if not _NAME.fullmatch(name) or (prefix and not (_is_prefix(prefix))) or label.startswith("/"):
            raise ValueError(
                f"a label must have at most 63 letters, digits, dashes, dots and underscores, with an optional prefix "
                f"as in ray.io/accelerator-type; got {label!r}"
            )
        if not _CHOICE.fullmatch(choice):
            raise ValueError(f"{label}: must be a value, !value, in(a, b) or !in(a, b); got {choice!r}")
    return {label: choice.replace(" ", "") for label, choice in selector.items()}


def _is_prefix(text: str) -> bool:
    return len(text) <= LONGEST_PREFIX and _DNS_PREFIX.fullmatch(text) is not None


LabelSelector = Annotated[dict[Text, Text], Field(max_length=MOST_LABELS), AfterValidator(_well_formed)]
"""For each label a condition on its value. Empty: every host."""


def is_chosen(labels: Mapping[str, str], selector: Mapping[str, str]) -> bool:
    """Whether a host with these labels satisfies every condition of a well-formed selector."""
    return all(_satisfies(labels.get(label), choice) for label, choice in selector.items())


def _satisfies(value: str | None, choice: str) -> bool:
    match = _CHOICE.fullmatch(choice)
    assert match is not None, f"{choice} should have been refused"
    values = [each.strip() for each in (match["several"] or match["one"]).split(",")]
    return (value in values) is not bool(match["is_not"])


def written(selector: Mapping[str, str]) -> str:
    """The selector as text for messages."""
    return ", ".join(f"{label}={choice}" for label, choice in selector.items())
