"""Links, in bytes a second one way, by their makers' data sheets; their efficiency is defined where they are used."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    name: str
    bytes_per_s: float


_ALL: Final = (
    Link(name="NVLink 400", bytes_per_s=200e9),  # H800: 400 GB/s both ways together
    Link(name="NVLink 600", bytes_per_s=300e9),
    Link(name="NVLink 900", bytes_per_s=450e9),
    Link(name="PCIe 4", bytes_per_s=32e9),
    Link(name="PCIe 5", bytes_per_s=64e9),
    Link(name="400 Gb/s", bytes_per_s=50e9),
    Link(name="8 x 400 Gb/s", bytes_per_s=400e9),
    Link(name="memory", bytes_per_s=10e9),  # a copy within one machine, read and written
)
LINKS: Final = {link.name: link for link in _ALL}

HOST_BUS: Final = LINKS["PCIe 5"]
NIC_400: Final = LINKS["400 Gb/s"]
HOST_NETWORK: Final = LINKS["8 x 400 Gb/s"]
"""Of a host with eight devices."""
