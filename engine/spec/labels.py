"""Labels of a cluster's hosts, and selectors over them, as Ray has both.

    {"accelerator": "H100", "zone": "in(a, b)", "lent": "!true", "rack": "!in(r1, r2)"}

Invariants:
- what is taken in here Ray takes too, and a host is chosen here if and only if Ray's scheduler would choose it (a test
  asks a real one);
- a host without the label is chosen by `!…` and by nothing else.
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
    """Without spaces: Ray 2.60 takes them, and then looks for a value that begins with one."""
    for label, choice in selector.items():
        prefix, _, name = label.rpartition("/")
        if not _NAME.fullmatch(name) or (prefix and not (_is_prefix(prefix))) or label.startswith("/"):
            raise ValueError(
                f"a label is a word of letters, digits, dash, dot and underscore, at most 63 of them, perhaps behind a "
                f"prefix as in ray.io/accelerator-type; got {label!r}"
            )
        if not _CHOICE.fullmatch(choice):
            raise ValueError(f"of the label {label}: a value, !value, in(a, b) or !in(a, b); got {choice!r}")
    return {label: choice.replace(" ", "") for label, choice in selector.items()}


def _is_prefix(text: str) -> bool:
    return len(text) <= LONGEST_PREFIX and _DNS_PREFIX.fullmatch(text) is not None


LabelSelector = Annotated[dict[Text, Text], Field(max_length=MOST_LABELS), AfterValidator(_well_formed)]
"""By label, what its value must be, or must not be. Empty: every host."""


def is_chosen(labels: Mapping[str, str], selector: Mapping[str, str]) -> bool:
    """Whether a host with these labels satisfies all of a well-formed selector."""
    return all(_agrees(labels.get(label), choice) for label, choice in selector.items())


def _agrees(value: str | None, choice: str) -> bool:
    read = _CHOICE.fullmatch(choice)
    assert read is not None, f"{choice} was to be refused"
    named = [each.strip() for each in (read["several"] or read["one"]).split(",")]
    return (value in named) is not bool(read["is_not"])


def written(selector: Mapping[str, str]) -> str:
    """For messages."""
    return ", ".join(f"{label}={choice}" for label, choice in selector.items())
