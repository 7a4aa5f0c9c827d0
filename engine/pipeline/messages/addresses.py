"""Addresses of the parts: a kind and, where there are several parts of the kind, a number.

Logs and recordings hold their text: "rollout/3", "relay/0", "trainer"; only `Address.parse` reads it. Most jobs have
one environment worker, "environment"; the next is "environment/1".
"""

from dataclasses import dataclass
from typing import Final, Literal, get_args

Kind = Literal["rollout", "relay", "data", "trainer", "environment", "manager", "driver"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
NUMBERED: Final[frozenset[Kind]] = frozenset(("rollout", "relay"))
NUMBERED_BESIDE_THE_FIRST: Final[frozenset[Kind]] = frozenset(("environment",))


@dataclass(frozen=True, slots=True, repr=False)
class Address:
    kind: Kind
    number: int = 0
    """0 where the kind has one part."""

    def __str__(self) -> str:
        is_one_of_several = self.kind in NUMBERED or (self.kind in NUMBERED_BESIDE_THE_FIRST and self.number > 0)
        return f"{self.kind}/{self.number}" if is_one_of_several else self.kind

    __repr__ = __str__

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Raises `ValueError` unless `text` is an address."""
        name, _, number = text.partition("/")
        for kind in KINDS:
            address = cls(kind, int(number) if number.isdecimal() else 0)
            if kind == name and str(address) == text:
                return address
        raise ValueError(f"{text!r} is not an address")


DATA: Final = Address("data")
TRAINER: Final = Address("trainer")
MANAGER: Final = Address("manager")
DRIVER: Final = Address("driver")


def rollout_address(replica: int) -> Address:
    return Address("rollout", replica)


def relay_address(host: int) -> Address:
    return Address("relay", host)


def environment_address(worker: int) -> Address:
    return Address("environment", worker)


def environment_of(ordinal: int, num_environments: int) -> Address:
    """The worker for a prompt: always the same one, so it remembers its answers to other replicas."""
    return environment_address(ordinal % num_environments)


RELAY: Final = relay_address(0)
"""The relay that leads until another is elected."""
