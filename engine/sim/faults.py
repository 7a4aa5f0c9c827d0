"""Which faults a seed turns on: a random subset, so that rare combinations come up too (swarm testing)."""

from dataclasses import dataclass

from engine.sim.chance import Chance


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    delay_s: float = 0.002
    """Messages take up to this long; long delays also change their order."""
    drop: float = 0.0
    duplicate: float = 0.0
    corrupt: float = 0.0
    """A chunk of weights arrives with other bytes."""
    grader_fails: float = 0.0
    crashes: tuple[float, ...] = ()
    """When a replica dies."""
    silent_deaths: float = 0.0
    """Share of the deaths that nobody reports: only the missing heartbeat tells."""

    @classmethod
    def drawn(cls, seed: int) -> "Faults":
        chance = Chance(seed, "faults")
        crashes = [chance.uniform(0.5, 20.0) for _ in range(chance.whole(0, 4))]
        return cls(
            delay_s=0.5 if chance.happens(0.5) else 0.002,
            drop=chance.uniform(0, 0.2) if chance.happens(0.4) else 0.0,
            duplicate=chance.uniform(0, 0.3) if chance.happens(0.4) else 0.0,
            corrupt=chance.uniform(0, 0.2) if chance.happens(0.3) else 0.0,
            grader_fails=0.02 if chance.happens(0.3) else 0.0,
            crashes=tuple(sorted(crashes)) if chance.happens(0.5) else (),
            silent_deaths=chance.uniform(),
        )
