"""Travel: whether a version is sent whole or as a delta, by which kind reached every relay sooner of late.

    whole   every byte over every link, as it comes            bytes / link
    delta   made when all has arrived, little over the        bytes / make + changed / link + bytes / apply
            links, applied to the version before

Fixed costs are only rounds of messages. So for gigabytes a delta wins on links slower than (1 - changed / bytes) / (1 /
make + 1 / apply), whatever the number of links; make, apply and changed depend on machines and updates.

Invariants:
- an untried kind is tried, and the slower kind is retried now and then: links and updates change;
- before any measurement, deltas.
"""

from typing import Literal

Kind = Literal["whole", "delta"]


class Travel:
    def __init__(self, *, again_after: int) -> None:
        """`again_after`: whole versions in a row after which a delta is tried again."""
        self._again_after = again_after
        self._s_per_byte: dict[Kind, float] = {}
        self._num_whole = 0

    @property
    def prefers_delta(self) -> bool:
        whole, delta = (self._s_per_byte.get(kind) for kind in ("whole", "delta"))
        is_slower = whole is not None and delta is not None and delta >= whole
        return not is_slower or self._num_whole >= self._again_after

    def record(self, kind: Kind, *, num_bytes: int, seconds: float) -> None:
        """Records the time from the offer until every relay had the version."""
        self._s_per_byte[kind] = seconds / max(1, num_bytes)
        self._num_whole = self._num_whole + 1 if kind == "whole" else 0
