"""The grader bench calls a real worker, whose processes sleep in the sandbox."""

import json

import pytest

from engine.environments.sandbox.capacity import host_capacity
from tests.bench.engine.command import bench


@pytest.mark.sandbox
def test_more_calls_than_processes_all_succeed(capsys: pytest.CaptureFixture[str]) -> None:
    num_open = 3 * host_capacity().computing
    assert bench(["graders", "--json", "--open", str(num_open), "--seconds", "0.1"]) == 0
    [row] = json.loads(capsys.readouterr().out)["rows"]
    assert (row["open"], row["failed"]) == (num_open, 0)
    assert 0 < row["of_the_bound"] <= 1
