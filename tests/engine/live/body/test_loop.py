"""A body that cannot be built reports one failure with its class."""

import pytest

from engine.live.body.loop import Body, BodyFailed, Loop
from engine.pipeline.messages.addresses import DRIVER
from engine.training.parts.exact_dtype import WrongDtype


def failure(error: BaseException) -> BodyFailed:
    def build() -> Body:
        raise error

    loop = Loop(name="trainer", build=build, send=lambda to, message: None)
    [(to, failed)] = loop.outbox.collect(30.0)
    assert to == DRIVER and isinstance(failed, BodyFailed)
    return failed


def test_os_error_in_build_is_a_platform_failure() -> None:
    assert failure(OSError("the disk is gone")).failure_class == "platform"


class Panic(BaseException):
    """As `pyo3_runtime.PanicException`: not an `Exception`."""


def test_panic_of_a_rust_library_is_reported() -> None:
    failed = failure(Panic("Onig: Regex search error: retry-limit-in-match over"))
    assert failed.failure_class == "platform" and "retry-limit" in failed.message


def test_infrastructure_cannot_be_reported_without_a_cause() -> None:
    with pytest.raises(AssertionError):
        BodyFailed(failure_class="infrastructure", message="every rollout is dead")


def test_weights_of_another_dtype_are_a_config_failure() -> None:
    failed = failure(WrongDtype("weights must be float32: policy's head_VD is bfloat16"))
    assert failed == BodyFailed(failure_class="config", message="weights must be float32: policy's head_VD is bfloat16")
