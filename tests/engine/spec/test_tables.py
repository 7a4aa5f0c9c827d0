"""Tables that both planes read (recipes, schedules) and the documents that repeat them."""

import re
from pathlib import Path
from typing import get_args

import pytest

from engine.policy.schedule import PRESETS
from engine.spec.job import AlgorithmSpec, CorrectionSpec, JobSpec, ScheduleSpec
from engine.spec.recipes import RECIPES, AlgorithmName, CorrectionName, own_clips
from engine.spec.schedules import SCHEDULES, ScheduleName, all_schedules

ROOT = Path(__file__).parents[3]

# The papers' values; PPO's if a paper gives none. CISPO: no lower bound, weights up to 5 (ScaleRL).
CLIPS: dict[AlgorithmName, tuple[float, float]] = {
    "ppo": (0.2, 0.2),
    "grpo": (0.2, 0.2),
    "dr_grpo": (0.2, 0.2),
    "dapo": (0.2, 0.28),
    "gspo": (3e-4, 4e-4),
    "cispo": (1.0, 4.0),
    "rloo": (0.2, 0.2),
    "reinforce_pp": (0.2, 0.2),
}


@pytest.mark.parametrize("name", get_args(AlgorithmName))
def test_algorithm_has_its_papers_clip_by_default(name: AlgorithmName) -> None:
    assert AlgorithmSpec(name=name).clips == CLIPS[name]
    assert AlgorithmSpec(name=name, clip_low=0.5).clips == (0.5, CLIPS[name][1])
    assert AlgorithmSpec(name=name, clip_high=0.5).clips == (CLIPS[name][0], 0.5)
    assert re.search(r"arXiv \d{4}\.\d{5}", RECIPES[name].clip_source)


@pytest.mark.parametrize("name", get_args(AlgorithmName))
def test_old_tokens_are_corrected_by_default(name: AlgorithmName) -> None:
    own: CorrectionName = "none" if name == "cispo" else "truncated"
    assert AlgorithmSpec(name=name).corrects_by == own
    assert AlgorithmSpec(name=name, correction=CorrectionSpec(name="masked")).corrects_by == "masked"


def test_staleness_is_bounded_by_default() -> None:
    assert JobSpec(name="t").schedule.staleness_bound == 8
    assert {name: ScheduleSpec(name=name).staleness_bound for name in SCHEDULES} == {
        **dict.fromkeys(("laminar", "partial", "bounded", "inflight", "paper"), 8),
        **{"sync": 0, "one_step": 1, "stream": 3},
    }
    assert ScheduleSpec(max_staleness=20).staleness_bound == 20


def test_every_algorithm_and_schedule_has_a_row() -> None:
    assert set(RECIPES) == set(get_args(AlgorithmName))
    assert set(SCHEDULES) == set(PRESETS) == set(get_args(ScheduleName))
    assert {name: entry.repacks for name, entry in SCHEDULES.items()} == {
        name: preset.repack for name, preset in PRESETS.items()
    }


def test_documentation_lists_name_every_row() -> None:
    assert all(name in own_clips("clip_low") and name in own_clips("clip_high") for name in RECIPES)
    assert all(f"{name}: {entry.waits}." in all_schedules() for name, entry in SCHEDULES.items())


def test_engine_readme_lists_the_schedules_of_the_table() -> None:
    readme = (ROOT / "engine/README.md").read_text()
    [section] = re.findall(r"^## Schedules\n(.*?)^A replica holds", readme, re.MULTILINE | re.DOTALL)
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| (\d+) \|$", section, re.MULTILINE)
    assert rows == [(name, entry.waits, str(entry.max_staleness)) for name, entry in SCHEDULES.items()]


def test_project_readme_names_every_schedule() -> None:
    [row] = re.findall(r"^\| schedule \|(.*)\|$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", row)) == set(SCHEDULES)
