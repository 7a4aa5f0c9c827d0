"""The comparison with TRL gives both the same prompts, waits and rewards, and its split adds up."""

import pytest

from engine.environments.port import Turn, Verdict
from engine.environments.tools.tool_sums import ToolSums
from tests.bench.engine.peers.processes import cpu_s_by_part
from tests.bench.engine.peers.split import Measured, StepMs, columns, waits_by_part
from tests.bench.engine.peers.tasks import GROUP
from tests.bench.engine.peers.trl import StepClock
from tests.bench.engine.peers.trl_tools import make_tools, rewards_of

ENVIRONMENT = ToolSums(seed=0, turns=3, wait_mean_s=1e-6)


def test_trl_tool_returns_and_waits_like_the_environment() -> None:
    make = make_tools(ENVIRONMENT)
    for number in range(2 * GROUP):
        tool = make()
        tool.reset(ordinal=number // GROUP, prompt="is told too")
        prompt = tool.prompt
        assert prompt.facts["sample"] == number % GROUP
        messages = [ENVIRONMENT.respond(prompt, [Turn(text="")] * said) for said in (1, 2)]
        assert [tool.next_term() for _ in messages] == [each.text for each in messages if not isinstance(each, Verdict)]


def test_turns_are_rewarded_alike_and_cut_answers_with_zero() -> None:
    terms = [int(term) for term in str(ENVIRONMENT.prompt("train", 0).facts["terms"]).split()]
    right = [str(sum(terms[: at + 2]) % 100) for at in range(3)]
    assert rewards_of(ENVIRONMENT, [0, 0, 0], [right, right[:2], [*right[:2], "x"]]) == [1.0, 0.0, pytest.approx(2 / 3)]


def test_trl_step_is_split_into_generating_waiting_training() -> None:
    clock = StepClock()
    clock.end_step()
    with clock.rolling_out, clock.generating:
        sum(range(10_000))
    clock.end_step()
    of_step = clock.measured(steps=1, warm_up=1).of_step
    parts = of_step.generating_ms + of_step.rollout_idle_ms + of_step.training_ms
    assert parts == pytest.approx(of_step.step_ms) and of_step.generating_ms > 0


def test_row_has_medians_and_cpu_time_by_part() -> None:
    step = StepMs(
        step_ms=3, generating_ms=1, training_ms=2, handover_ms=0, rollout_idle_ms=0, trainer_idle_ms=0, cpu_ms=4
    )
    runs = [Measured(samples_per_s=rate, of_step=step, cpu_by_part={"replica": rate}) for rate in (1.0, 9.0, 2.0)]
    assert columns(runs)["samples_per_s"] == 2.0 and columns(runs)["step_ms"] == 3
    assert waits_by_part(runs) == "replica 2"
    assert cpu_s_by_part()["driver"] > 0
