"""The relay benchmark: it reports every row, and reduces a size that does not fit instead of refusing it."""

import pytest

from tests.bench.engine.relays import travel
from tests.bench.engine.relays.loopback import chain

pytestmark = pytest.mark.ray


def test_bytes_go_through_a_chain_of_bare_sockets() -> None:
    with chain(2) as run:
        assert run(3 * 2**20 + 1) > 0.0 and run(1) > 0.0


@pytest.mark.long
def test_rows_cover_both_kinds_and_install_at_the_size_that_fits(own_ray: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(travel, "_largest_mb", lambda num_relays: 4)
    remarks: list[str] = []
    rows = list(travel.rows_of(2, [400], 1, remarks.append))
    assert [(row["what"], row["size_mb"]) for row in rows] == [("whole", 4), ("delta", 4), ("install", 4)]
    assert remarks == ["2 relays: 4 MB instead of 400, as much as the free memory holds."]
    assert all(row["declared_dead"] == 0 for row in rows[:2])
