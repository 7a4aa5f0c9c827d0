"""A run has succeeded when trainer and data have finished with the same, newest trainer."""

from itertools import permutations

from engine.pipeline.driver.run_end import RunEnd
from engine.pipeline.messages.addresses import TRAINER, rollout_address
from engine.pipeline.messages.to_driver import PartFinished, PartStarted, TrainerReady


def test_run_ends_when_both_have_finished_in_any_order() -> None:
    for reports in permutations((PartFinished(part="trainer"), PartFinished(part="data"))):
        end = RunEnd()
        end.on_report(reports[0])
        assert not end.is_reached
        end.on_report(reports[1])
        assert end.is_reached


def test_new_trainer_invalidates_reports_on_its_predecessor() -> None:
    """It finished and died, and its last checkpoint became corrupt: the last step must be trained again."""
    end = RunEnd()
    for report in (PartFinished(part="trainer"), TrainerReady(num_parameters=1, epoch=1), PartFinished(part="data")):
        end.on_report(report)
    assert not end.is_reached and end.finished == []
    end.on_report(PartFinished(part="trainer", epoch=1))
    assert not end.is_reached
    end.on_report(PartFinished(part="data", epoch=1))
    assert end.is_reached


def test_data_may_report_on_a_trainer_before_its_first_message() -> None:
    end = RunEnd()
    end.on_report(PartFinished(part="trainer"))
    end.on_report(PartFinished(part="data", epoch=1))
    assert not end.is_reached
    end.on_report(TrainerReady(num_parameters=1, epoch=1))
    end.on_report(PartFinished(part="trainer", epoch=1))
    assert end.is_reached


def test_started_trainer_invalidates_earlier_reports() -> None:
    end = RunEnd()
    end.on_report(PartFinished(part="trainer"))
    end.on_report(PartStarted(part=rollout_address(0), incarnation=7))
    end.on_report(PartStarted(part=TRAINER, incarnation=1))
    end.on_report(PartFinished(part="data"))
    assert not end.is_reached
