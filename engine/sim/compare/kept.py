"""Finished cells, appended to a file as they end, so that an interrupted grid resumes.

    {"of": "3f9c…", "cell": {…}, "why_not": "", "split": [24, 40, 4], "outcomes": [{…}, …]}        a line for each cell

Invariants:
- a cell is reused only for the same constants, schedules, extent and program (`of`): after any change it runs again;
- a truncated line is ignored.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from engine.sim.compare.contestants import CONTESTANTS
from engine.sim.compare.grid import Cell, Extent, Ran, warmed
from engine.sim.costs.calibration import CONSTANTS
from engine.sim.costs.devices import DEVICES
from engine.sim.costs.models import MODELS
from engine.sim.fleet.outcome import Outcome

ENGINE: Final = Path(__file__).parents[2]
PROGRAM: Final = ("sim", "pipeline", "policy")
"""The engine's packages that decide, and that price decisions."""


def fingerprint(extent: Extent) -> str:
    """A hash of everything that a cell's figures depend on."""
    of_a_cell = replace(extent, workloads=(), models=(), gpus=(), schedules=())
    digest = sha256(repr((of_a_cell, CONSTANTS, CONTESTANTS, DEVICES, MODELS)).encode())
    for package in PROGRAM:
        for path in sorted((ENGINE / package).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


class Kept:
    def __init__(self, path: Path, extent: Extent) -> None:
        self._path, self._extent, self._of = path, extent, fingerprint(extent)

    def load(self) -> dict[Cell, Ran]:
        return {ran.cell: ran for ran in self._read()} if self._path.exists() else {}

    def add(self, ran: Ran) -> None:
        split = None
        if ran.setup is not None:
            split = (ran.setup.train_devices, ran.setup.rollout_devices, ran.setup.tp)
        line = {
            "of": self._of,
            "cell": asdict(ran.cell),
            "why_not": ran.why_not,
            "split": split,
            "outcomes": [asdict(outcome) for outcome in ran.outcomes],
        }
        with self._path.open("a") as file:
            file.write(f"\n{json.dumps(line)}")

    def _read(self) -> Iterator[Ran]:
        for line in self._path.read_text().splitlines():
            try:
                kept: dict[str, Any] = json.loads(line)
            except json.JSONDecodeError:
                continue
            if kept["of"] == self._of:
                yield self._ran(kept)

    def _ran(self, kept: dict[str, Any]) -> Ran:
        cell = Cell(**kept["cell"])
        if kept["split"] is None:
            return Ran(cell=cell, why_not=kept["why_not"])
        train, rollout, tp = kept["split"]
        setup = replace(cell.setup(self._extent), train_devices=train, rollout_devices=rollout, tp=tp)
        outcomes = tuple(Outcome(**outcome) for outcome in kept["outcomes"])
        setup = warmed(setup, self._extent).with_seed(self._extent.seeds[0])
        return Ran(cell=cell, why_not=kept["why_not"], setup=setup, outcomes=outcomes)
