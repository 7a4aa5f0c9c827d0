"""Published figures next to ours: which follow from the calibration, and which do not.

    fitted     a constant was chosen to match the figure: no credit for it
    checked    no constant was: a hit is a result, and so is a miss

The Laminar paper's figures are compared only with its own schedule, `paper`, and its baseline, `sync`. If the
publication does not name its cell, ours is a range over all cells that it could be. Misses are listed with their likely
cause; nothing is tuned to remove them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from engine.sim.compare.grid import Ran, tokens_per_s
from engine.sim.costs.calibration import TARGETS

MOST_SPEED_UP: Final = 5.48
GENERATION_SHARE: Final = 0.831
KV_USED: Final = 0.716


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    what: str
    source: str
    published: float
    ours: tuple[float, float]
    """The lowest and the highest."""
    kind: Literal["fitted", "checked"]
    likely_cause: str = ""
    """The likely cause of a miss."""

    @property
    def ratio(self) -> tuple[float, float]:
        return (self.ours[0] / self.published, self.ours[1] / self.published)

    def as_document(self) -> dict[str, Any]:
        return {**asdict(self), "ratio": self.ratio}


def from_grid(grid: Sequence[Ran]) -> Iterator[Published]:
    by_cell = {ran.cell: ran for ran in grid if ran.outcomes}
    sync = {(cell.workload, cell.model, cell.gpus): ran for cell, ran in by_cell.items() if cell.schedule == "sync"}
    speed_ups = [
        tokens_per_s(ran) / tokens_per_s(sync[place])
        for cell, ran in by_cell.items()
        if cell.schedule == "paper" and (place := (cell.workload, cell.model, cell.gpus)) in sync
    ]
    shares = [each.generation_share for place, ran in sync.items() if place[0] == "math" for each in ran.outcomes]
    if speed_ups:
        yield Published(
            what="paper over sync, at most",
            source="Laminar",
            published=MOST_SPEED_UP,
            ours=(max(speed_ups), max(speed_ups)),
            kind="checked",
            likely_cause="its cell and its lengths are not named; our longest answer is drawn from one log-normal",
        )
    if shares:
        yield Published(
            what="generation of a step of sync, math",
            source="Laminar",
            published=GENERATION_SHARE,
            ours=(min(shares), max(shares)),
            kind="checked",
            likely_cause="the cell is not named",
        )


def from_targets() -> Iterator[Published]:
    """Costs of single operations, without a run."""
    for target in TARGETS:
        modelled = target.modelled()
        yield Published(
            what=target.what,
            source="calibration",
            published=target.published,
            ours=(modelled, modelled),
            kind="checked" if target.fixes is None else "fitted",
        )
