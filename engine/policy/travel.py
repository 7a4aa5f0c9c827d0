"""Travel: whether a version goes whole or as what changed, by what brought the last ones to every relay sooner.

    whole   every byte over every link, as it comes            bytes / link
    delta   made when all of it is here, little over the       bytes / make + changed / link + bytes / apply
            links, applied where the version before lies

The constants of both are rounds of messages, so of gigabytes a delta wins on links slower than
(1 - changed / bytes) / (1 / make + 1 / apply), whatever their number; and these are of the machines and of the updates.

Invariants:
- what was never tried is tried, and what was slower is tried again now and then: links and updates change;
- until something was measured, deltas.
"""

from typing import Literal

Kind = Literal["whole", "delta"]


class Travel:
    def __init__(self, *, again_after: int) -> None:
        """`again_after` versions of one kind the other is tried."""
        self._again_after = again_after
        self._s_per_byte: dict[Kind, float] = {}
        self._num_whole = 0

    @property
    def prefers_delta(self) -> bool:
        whole, delta = (self._s_per_byte.get(kind) for kind in ("whole", "delta"))
        is_slower = whole is not None and delta is not None and delta >= whole
        return not is_slower or self._num_whole >= self._again_after

    def took(self, kind: Kind, *, num_bytes: int, seconds: float) -> None:
        """From the offer until every relay had it."""
        self._s_per_byte[kind] = seconds / max(1, num_bytes)
        self._num_whole = self._num_whole + 1 if kind == "whole" else 0
