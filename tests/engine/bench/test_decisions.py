"""The bench of brains' decisions makes each decision that it times, at every size."""

import json

import pytest

from tests.bench.engine.command import bench


def test_every_brain_decides_at_every_size(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(["decisions", "--json", "--replicas", "3", "20", "--messages", "5", "--plans", "2"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    found = {(row["brain"], row["decision"], row["replicas"]): row["runs"] for row in rows}
    assert found == {
        ("data", "a message", 3): 3,
        ("data", "a message", 20): 5,
        ("data", "a batch", 3): 1,
        ("data", "a batch", 20): 1,
        ("repacker", "a report", 3): 3,
        ("repacker", "a report", 20): 5,
        ("repacker", "a plan", 3): 2,
        ("repacker", "a plan", 20): 2,
    }
