"""A body that cannot be built says so once, and whose fault it is."""

from engine.live.body.loop import Body, BodyFailed, Loop
from engine.pipeline.messages.addresses import DRIVER
from engine.training.parts.exact_dtype import WrongDtype


def failure(error: Exception) -> BodyFailed:
    def build() -> Body:
        raise error

    loop = Loop(name="trainer", build=build, send=lambda to, message: None)
    [(to, failed)] = loop.outbox.collect(30.0)
    assert to == DRIVER and isinstance(failed, BodyFailed)
    return failed


def test_what_another_machine_may_have_is_tried_again() -> None:
    assert failure(OSError("the disk is gone")).failure_class == "platform"


def test_weights_of_another_dtype_do_not_cause_a_rebuild() -> None:
    told = failure(WrongDtype("weights must be float32: policy's head_VD is bfloat16"))
    assert told == BodyFailed(failure_class="config", message="weights must be float32: policy's head_VD is bfloat16")
