"""A driver that freezes for longer than any of its timeouts reports no fault after it wakes."""

import os
import subprocess
import time
from pathlib import Path
from typing import Any, Final

import pytest

from engine.live.run.attempt import Attempt, AttemptPlan
from engine.policy.recovery import Patience
from engine.spec.facts import FactBody, FaultDetected, StepTrained
from engine.spec.job import JobSpec
from tests.engine.live.run.jobs.blows import Blows

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("own_ray")]

STEPS, MANY_STEPS = 12, 80
SILENT_S: Final = 4.0


def stop_this_process(lasts_s: float) -> None:
    me = os.getpid()
    subprocess.Popen(["sh", "-c", f"kill -STOP {me}; sleep {lasts_s}; kill -CONT {me}"])


def assert_no_part_is_blamed(sink: Blows, folder: Path, *, steps: int = STEPS) -> None:
    fields: dict[str, Any] = {
        "name": "frozen",
        "training": {"steps": steps, "prompts_per_step": 4, "checkpoint_every": 4},
        "algorithm": {"group_size": 4},
        "rollout": {"replicas": 2, "max_batch": 16, "max_new_tokens": 40},
        "evaluation": {"prompts": 8},
    }
    plan = AttemptPlan(
        spec=JobSpec.model_validate(fields), checkpoints=folder / "checkpoints", patience=Patience(silent_s=SILENT_S)
    )
    finished = Attempt(plan, sink).run(lambda: None)
    assert finished.outcome == "succeeded", finished.message
    assert sink.of(FaultDetected) == []
    assert [body.step for body in sink.of(StepTrained)] == list(range(1, steps + 1))
    assert finished.ledger["trained"] == steps * 16 and finished.ledger["open"] == 0


@pytest.mark.soak
@pytest.mark.parametrize("lasts_s", [2.0 * SILENT_S, 90.0, 450.0])
def test_frozen_driver_blames_no_part_and_trains_each_once(lasts_s: float, tmp_path: Path) -> None:
    assert_no_part_is_blamed(Blows({4: lambda: stop_this_process(lasts_s)}), tmp_path)


class SlowAfterwards(Blows):
    """A sink on a disk that is slow with the backlog after a pause."""

    def __init__(self, *, at_step: int, away_s: float, slow_s: float, num_slow: int) -> None:
        super().__init__({at_step: self._go_away})
        self._away_s, self._slow_s, self._num_slow, self._left = away_s, slow_s, num_slow, 0

    def _go_away(self) -> None:
        time.sleep(self._away_s)
        self._left = self._num_slow

    def record(self, body: FactBody) -> None:
        super().record(body)
        if self._left:
            self._left -= 1
            time.sleep(self._slow_s)


@pytest.mark.long
def test_driver_working_off_a_backlog_blames_no_part(tmp_path: Path) -> None:
    sink = SlowAfterwards(at_step=4, away_s=1.5 * SILENT_S, slow_s=SILENT_S / 40, num_slow=80)
    assert_no_part_is_blamed(sink, tmp_path, steps=MANY_STEPS)
