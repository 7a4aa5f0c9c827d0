"""A run is over when trainer and data have finished with the same, newest trainer."""

from itertools import permutations

from engine.pipeline.driver.finish import Finish
from engine.pipeline.messages.to_driver import PartFinished, TrainerReady


def test_both_must_have_finished_in_whatever_order() -> None:
    for reports in permutations((PartFinished(part="trainer"), PartFinished(part="data"))):
        finish = Finish()
        finish.on_report(reports[0])
        assert not finish.is_over
        finish.on_report(reports[1])
        assert finish.is_over


def test_a_trainer_that_begins_again_takes_back_what_was_said_of_the_one_before() -> None:
    """It finished and died, and its last checkpoint rotted: the last step is to be trained again."""
    finish = Finish()
    for report in (PartFinished(part="trainer"), TrainerReady(num_parameters=1, epoch=1), PartFinished(part="data")):
        finish.on_report(report)
    assert not finish.is_over and finish.parts == []
    finish.on_report(PartFinished(part="trainer", epoch=1))
    assert not finish.is_over
    finish.on_report(PartFinished(part="data", epoch=1))
    assert finish.is_over


def test_what_data_says_of_a_trainer_may_come_before_its_own_first_word() -> None:
    finish = Finish()
    finish.on_report(PartFinished(part="trainer"))
    finish.on_report(PartFinished(part="data", epoch=1))
    assert not finish.is_over
    finish.on_report(TrainerReady(num_parameters=1, epoch=1))
    finish.on_report(PartFinished(part="trainer", epoch=1))
    assert finish.is_over
