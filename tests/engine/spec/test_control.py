"""Control requests to a running attempt."""

from typing import Any

import pytest
from pydantic import ValidationError

from engine.spec.control import ControlRequest, HeartbeatReply


@pytest.mark.parametrize("fields", [{"kind": "cancel"}, {"kind": "pause"}, {"kind": "resize", "replicas": 3}])
def test_request_survives_serialisation(fields: dict[str, Any]) -> None:
    reply = HeartbeatReply(requests=[ControlRequest(id="req_1", **fields)])
    assert HeartbeatReply.model_validate_json(reply.model_dump_json()) == reply


@pytest.mark.parametrize(
    "fields",
    [{"kind": "resize"}, {"kind": "pause", "replicas": 1}, {"kind": "resize", "replicas": 0}, {"kind": "stop"}],
)
def test_impossible_request_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ControlRequest(id="req_1", **fields)
