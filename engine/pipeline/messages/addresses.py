"""Who can be spoken to."""

from typing import Final

Address = str
DATA: Final = "data"
TRAINER: Final = "trainer"
MANAGER: Final = "manager"
DRIVER: Final = "driver"


def rollout_address(replica: int) -> Address:
    return f"rollout/{replica}"


def relay_address(host: int) -> Address:
    return f"relay/{host}"


RELAY: Final = relay_address(0)
"""The relay that leads until another is elected."""
