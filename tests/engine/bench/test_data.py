"""The bench of data's process runs completely, and its counts are right."""

import json

import pytest

from tests.bench.engine.command import bench


def test_every_token_is_counted_as_progress_and_at_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    few = ("--replicas", "4", "--samples", "2", "--length", "200", "--rounds", "3")
    assert bench(["data", "--json", *few, "--ended", "40", "--ended-length", "64"]) == 0
    rows = {(row["traffic"], row["part"]): row for row in json.loads(capsys.readouterr().out)["rows"]}
    progress, ended = rows["progress", "all"], rows["ended", "all"]
    assert 8 < progress["sent_bytes_per_token"] < 100, "a token takes eight, and a message has a head"
    assert ended["log_bytes_per_token"] > 0
    slowest = min(progress["tokens_per_cpu_s"], ended["tokens_per_cpu_s"])
    assert 0 < rows["both", "all"]["tokens_per_cpu_s"] < slowest
