"""Device types, by their makers' data sheets: dense bf16, without sparsity."""

from dataclasses import dataclass
from typing import Final

from engine.sim.costs.links import HOST_BUS, LINKS, NIC_400, Link


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    name: str
    flops: float
    """A second."""
    bytes_per_s: float
    """Of its memory."""
    memory_bytes: float
    near: Link
    """To the others of its host."""
    host: Link = HOST_BUS
    """To its host's memory."""
    far: Link = NIC_400
    """Its share of its host's network."""
    per_host: int = 8

    @property
    def ridge(self) -> float:
        """Operations that it does while it reads a byte."""
        return self.flops / self.bytes_per_s


_ALL: Final = (
    Device(name="H800", flops=989e12, bytes_per_s=3.35e12, memory_bytes=80e9, near=LINKS["NVLink 400"]),
    Device(name="H100", flops=989e12, bytes_per_s=3.35e12, memory_bytes=80e9, near=LINKS["NVLink 900"]),
    Device(name="H200", flops=989e12, bytes_per_s=4.8e12, memory_bytes=141e9, near=LINKS["NVLink 900"]),
    Device(name="A100", flops=312e12, bytes_per_s=2.039e12, memory_bytes=80e9, near=LINKS["NVLink 600"]),
    Device(name="H20", flops=148e12, bytes_per_s=4.0e12, memory_bytes=96e9, near=LINKS["NVLink 900"]),
    Device(name="L40S", flops=362e12, bytes_per_s=0.864e12, memory_bytes=48e9, near=LINKS["PCIe 4"]),
    # One core of the machine that this was written on, float32: a product of 1,024 × 1,024 twice, and one of 12,288 ×
    # 4,096 with a vector; median of nine, with other work on the machine (load 4 on 2 cores).
    Device(
        name="CPU",
        flops=0.11e12,
        bytes_per_s=21.7e9,
        memory_bytes=8e9,
        near=LINKS["memory"],
        host=LINKS["memory"],
        far=LINKS["memory"],
        per_host=1,
    ),
)
DEVICES: Final = {device.name: device for device in _ALL}
