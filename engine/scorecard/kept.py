"""A folder of kept runs: a description, and a folder for each run.

FOLDER/about.json                       the machine, and where figures begin
FOLDER/tailed-laminar-2/spec.json       the second run of one spec
                        facts.jsonl
                        recordings/     the messages and decisions of every part
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from engine.scorecard.tables import Value
from engine.spec.job import JobSpec

ABOUT_FILE: Final = "about.json"
SPEC_FILE: Final = "spec.json"
FACTS_FILE: Final = "facts.jsonl"
RECORDINGS: Final = "recordings"
LEFT_OUT: Final = 2
"""Last steps: no further batch is prepared while they train."""


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    warm_up: int
    """Steps before the first figure."""
    machine: Mapping[str, Value]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptRun:
    folder: Path
    spec: JobSpec
    warm_up: int

    @property
    def facts(self) -> Path:
        return self.folder / FACTS_FILE

    @property
    def recordings(self) -> Path:
        return self.folder / RECORDINGS

    @property
    def num_steps(self) -> int:
        """That figures are of."""
        return self.spec.training.steps - self.warm_up - LEFT_OUT

    @property
    def trajectories_per_step(self) -> int:
        return self.spec.training.prompts_per_step * self.spec.algorithm.group_size


def keep_about(folder: Path, about: About) -> None:
    """Raises `ValueError` if the folder already holds runs, whose conditions would be unknown."""
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{folder} is not empty; choose another folder")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ABOUT_FILE).write_text(json.dumps(asdict(about), indent=1))


def read_about(folder: Path) -> About:
    return About(**json.loads((folder / ABOUT_FILE).read_text()))


def kept_run(folder: Path) -> KeptRun:
    about = read_about(folder.parent)
    spec = JobSpec.model_validate_json((folder / SPEC_FILE).read_bytes())
    return KeptRun(folder=folder, spec=spec, warm_up=about.warm_up)


def kept_runs(folder: Path) -> list[KeptRun]:
    return [kept_run(path.parent) for path in sorted(folder.glob(f"*/{SPEC_FILE}"))]
