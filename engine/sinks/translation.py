"""Facts in the words of the control plane that receives them, which may run another release.

Invariants:
- a control plane is sent nothing that it does not announce; what is left out is logged once by name;
- facts keep their numbers: one that is left out is sent as of the kind `unknown`;
- a fact that decides the ledger or what is billed is sent whole or not at all.
"""

import json
import logging
from collections.abc import Iterable, Sequence
from typing import Final

from engine.spec.facts import BODIES, FACT_NAMES
from engine.spec.vocabulary import digest_of, needed_of, reduce_body

log = logging.getLogger(__name__)

_ADVICE: Final = "upgrade the control plane to this driver's release, or cancel the job"


class NotUnderstood(Exception):
    """The control plane does not know what decides the ledger or the bill of a fact."""


class Translation:
    """To the names that a control plane announces; None: it announces none, and is sent everything."""

    def __init__(self, names: Iterable[str] | None) -> None:
        self.names = None if names is None else frozenset(names)
        self._is_whole = self.names is None or self.names >= FACT_NAMES
        self._digest = None if self.names is None else digest_of(self.names)
        self._logged: set[str] = set()

    def is_of(self, digest: str) -> bool:
        return self._digest == digest

    def lines(self, lines: Sequence[bytes]) -> list[bytes]:
        """Raises `NotUnderstood`."""
        return list(lines) if self._is_whole else [self._line(line) for line in lines]

    def _line(self, line: bytes) -> bytes:
        fact = json.loads(line)
        body, left = reduce_body(fact["body"], BODIES, self.names)
        if missing := needed_of(fact.get("needs", ()), left):
            raise NotUnderstood(f"fact {fact['seq']}: the control plane does not know {', '.join(missing)}; {_ADVICE}")
        for name in set(left) - self._logged:
            self._logged.add(name)
            log.warning("facts reduced: the control plane's release does not know name=%s", name)
        return json.dumps({**fact, "body": body}, separators=(",", ":")).encode() if left else line
