"""What the actors of a real run write into their logs arrives as facts, under the part's own name."""

from pathlib import Path

import pytest

from engine.live.attempt import Attempt, AttemptPlan
from engine.sinks.memory import MemorySink
from engine.spec.facts import LogLines, ReplicasObserved, RunFinished
from engine.spec.job import JobSpec

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("own_ray")]


def test_every_parts_lines_are_told_before_the_end(tmp_path: Path) -> None:
    spec = JobSpec.model_validate(
        {
            "name": "lines",
            "training": {"steps": 1, "prompts_per_step": 4},
            "algorithm": {"group_size": 4},
            "rollout": {"replicas": 2, "max_batch": 16, "max_new_tokens": 20},
            "evaluation": {"prompts": 4},
        }
    )
    sink = MemorySink()
    finished = Attempt(AttemptPlan(spec=spec, checkpoints=tmp_path / "checkpoints"), sink).run(lambda: None)
    assert finished.outcome == "succeeded", finished.message
    told = [body for body in sink.bodies if isinstance(body, LogLines)]
    assert {"trainer", "data", "environment", "relay-0", "rollout-0", "rollout-1"} <= {body.component for body in told}
    first = next(line.message for body in told if body.component == "rollout-1" for line in body.lines)
    assert first.startswith("part=rollout/1 incarnation=0 host=")
    assert isinstance(sink.bodies[-1], RunFinished)
    observed = [body for body in sink.bodies if isinstance(body, ReplicasObserved)]
    assert all(span.end_s <= 0 for body in observed for replica in body.replicas for span in replica.spans)
