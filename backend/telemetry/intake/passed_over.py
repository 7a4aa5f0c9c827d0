"""What this release does not know in facts of a later driver: counted in each process, logged once by name.

A driver sends only names that the control plane announces, so this happens in the moment of a change of releases, and
with facts read from the spool of an ended driver.
"""

import logging
from typing import Final

from prometheus_client import Counter

from backend.api.request_times import registry
from backend.errors import Invalid
from engine.spec.facts import BODIES, Fact, UnknownFact

log = logging.getLogger(__name__)

_MOST_NAMES: Final = 1_000
"""A hostile driver can send any number of names; further ones are counted only."""
_LONGEST_NAME: Final = 100
_counted = Counter(
    "laminar_facts_passed_over",
    "Kinds, fields and values of a later release that were left out of facts, by kind of fact.",
    ["kind"],
    registry=registry,
)
for _kind in (*BODIES, "unknown"):
    _counted.labels(_kind)  # an alarm on its increase needs a first value
_logged: set[str] = set()


class NotUnderstood(Invalid):
    """This release does not know a part of the fact that decides how samples are counted or what is billed."""

    code = "not_understood"


def refuse_if_missing(fact: Fact) -> None:
    if missing := fact.missing:
        names = ", ".join(name[:_LONGEST_NAME] for name in missing[:5])
        raise NotUnderstood(
            f"Fact {fact.seq} has {names}, which decides how samples are counted or what is billed, and which this "
            "release does not know. Upgrade the control plane to the driver's release, or cancel the job."
        )


def note_passed_over(fact: Fact, *, job: str, attempt: int) -> None:
    for name in [fact.body.kind] if isinstance(fact.body, UnknownFact) else fact.passed_over:
        kind = name.partition(".")[0]
        _counted.labels(kind if kind in BODIES else "unknown").inc()
        shown = name[:_LONGEST_NAME]
        if shown not in _logged and len(_logged) < _MOST_NAMES:
            _logged.add(shown)
            log.warning("facts passed over: a later release's name=%r job=%s attempt=%d", shown, job, attempt)
