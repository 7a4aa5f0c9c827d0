"""The slowest honest rates, and the seconds that work takes at them: a bound for unmeasured work."""

from typing import Final

# Of a device that does its work, if badly: a disk over a busy network; a core that others use too, and products in a
# type that it has no instructions for; a GPU that is mostly waited for. A healthy part is never slower.
SLOWEST_BYTES_PER_S: Final = 10e6
SLOWEST_FLOPS_PER_S: Final = {"cpu": 0.1e9, "cuda": 1e12}


def estimate_s(*, num_bytes: float = 0.0, num_flops: float = 0.0, device: str = "cpu") -> float:
    """The seconds that this much work takes at the worst. `device` may have a number behind it."""
    flops_per_s = SLOWEST_FLOPS_PER_S.get(device.partition(":")[0], SLOWEST_FLOPS_PER_S["cpu"])
    return num_bytes / SLOWEST_BYTES_PER_S + num_flops / flops_per_s
