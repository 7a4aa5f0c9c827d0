"""Addresses as text: every address round-trips, and no other text parses."""

import pytest

from engine.pipeline.messages.addresses import (
    DATA,
    DRIVER,
    MANAGER,
    TRAINER,
    Address,
    environment_address,
    relay_address,
    rollout_address,
)

ENVIRONMENTS = (environment_address(0), environment_address(1))
EVERY_KIND = (rollout_address(0), rollout_address(12), relay_address(3), DATA, TRAINER, *ENVIRONMENTS, MANAGER, DRIVER)


@pytest.mark.parametrize("address", EVERY_KIND, ids=str)
def test_address_text_round_trips(address: Address) -> None:
    assert Address.parse(str(address)) == address


def test_a_number_is_written_where_there_are_several_of_a_kind() -> None:
    assert list(map(str, (rollout_address(3), relay_address(0), TRAINER))) == ["rollout/3", "relay/0", "trainer"]
    assert list(map(str, ENVIRONMENTS)) == ["environment", "environment/1"]


@pytest.mark.parametrize(
    "text",
    ["", "x", "rollout", "rollout/", "rollout/-1", "relay/one", "data/0", "data/1", "environment/0", "trainer/1/2"],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not an address"):
        Address.parse(text)
