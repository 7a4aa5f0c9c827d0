"""Control requests: the one shape in which something is asked of a running attempt."""

from typing import Any

import pytest
from pydantic import ValidationError

from engine.spec.control import ControlRequest, HeartbeatReply


@pytest.mark.parametrize("asked", [{"kind": "cancel"}, {"kind": "pause"}, {"kind": "resize", "replicas": 3}])
def test_a_request_is_the_same_on_both_sides_of_the_border(asked: dict[str, Any]) -> None:
    reply = HeartbeatReply(requests=[ControlRequest(id="req_1", **asked)])
    assert HeartbeatReply.model_validate_json(reply.model_dump_json()) == reply


@pytest.mark.parametrize(
    "asked", [{"kind": "resize"}, {"kind": "pause", "replicas": 1}, {"kind": "resize", "replicas": 0}, {"kind": "stop"}]
)
def test_a_request_that_nobody_could_obey_is_none(asked: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ControlRequest(id="req_1", **asked)
