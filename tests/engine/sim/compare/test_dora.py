"""A missed figure is taken apart with the formulas of any run; no test requires a hit."""

import pytest

from engine.sim.compare import dora
from engine.sim.costs.constants import AS_THEY_STAND, Constant
from engine.sim.costs.decode import READ_SHARE, STEP_OVERHEAD
from engine.sim.costs.lengths import Lengths


@pytest.fixture(scope="module")
def as_they_stand() -> dora.Rollouts:
    return dora.rollouts("as they stand")


def test_no_answer_ends_sooner_than_it_could_alone(as_they_stand: dora.Rollouts) -> None:
    lengths = Lengths(longest=dora.LONGEST)
    answers = (each for group in range(dora.GROUPS) for each in dora._answers(group, lengths))
    longest = max(answer.left[0] for answer in answers)
    assert longest == dora.LONGEST, "some answer reaches the cap"
    cost = dora.rollouts("alone", max_batch=dora.USUAL_BATCH).last_step_s
    assert 0 < as_they_stand.half_s < as_they_stand.seconds
    assert as_they_stand.seconds > 0.9 * longest * cost  # its first tokens had less context to read


@pytest.mark.parametrize("constant", [READ_SHARE, STEP_OVERHEAD])
def test_slower_steps_make_slower_rollouts(constant: Constant, as_they_stand: dora.Rollouts) -> None:
    factor = 0.5 if constant is READ_SHARE else 2.0
    slower = dora.rollouts("slower", book=AS_THEY_STAND.with_factor(constant, factor))
    assert slower.seconds > as_they_stand.seconds and slower.half_s > as_they_stand.half_s


def test_every_variant_has_a_name_of_its_own_and_a_time() -> None:
    names = [f"{constant.name} x {factor:g}" for constant in dora.SWEPT for factor in dora._ends_of(constant)]
    assert len(set(names)) == 2 * len(dora.SWEPT)
