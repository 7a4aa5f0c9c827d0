"""The faults that a seed enables: a random subset, so that rare combinations occur too (swarm testing).

Invariant: at `quiet_at` every fault stops; from then on the run must end by itself.
"""

from dataclasses import dataclass
from typing import Final, Literal

from engine.sim.chance import Chance

PartName = Literal["rollout", "relay", "data", "trainer", "manager", "environment", "driver"]
PARTS: Final[tuple[PartName, ...]] = ("rollout", "relay", "data", "trainer", "manager")
OUTSIDE: Final[tuple[tuple[PartName, float], ...]] = (("environment", 0.2), ("driver", 0.1))
# Faults come early in the run: a small job ends within some ten virtual seconds.
LAST_FAULT_S: Final = 12.0
QUIET_AT_S: Final = 25.0
CALM_DELAY_S: Final = 0.002


@dataclass(frozen=True, slots=True, kw_only=True)
class Blow:
    """A fault of one process or host, or a request to the driver, at a given time."""

    at: float
    part: PartName
    which: int
    """Modulo the number of parts of this name."""
    kind: Literal["crash", "freeze", "starve", "hang", "leave", "resize", "pause", "host goes", "host comes"]
    """`starve`: the process waits for a core, as its host reports, and must not be treated as dead. `hang`: its loop
    stops for good while heartbeats continue. `resize`, `pause`: a request to the driver, to continue with `which`
    replicas or to pause. A frozen driver freezes the manager too: they share a process. `host goes`: the host of relay
    `which` disappears with everything on it. `host comes`: an empty host joins."""
    lasts_s: float = 0.0
    """The length of a freeze, or the time that a replica has to leave."""
    is_silent: bool = False
    """The crash is not reported: only the missing heartbeat shows it."""


@dataclass(slots=True, kw_only=True)
class Faults:
    """The faults of one run, shared by all its processes; `fall_quiet` ends them in place."""

    delay_s: float = CALM_DELAY_S
    """The longest delay of a message; long delays also reorder messages."""
    drop: float = 0.0
    duplicate: float = 0.0
    corrupt: float = 0.0
    """A chunk of weights arrives with other bytes."""
    grader_fails: float = 0.0
    hangs: float = 0.0
    """A sample never ends on the replica that starts it first."""
    rotten: float = 0.0
    """A checkpoint fails its verification when it is needed."""
    blows: tuple[Blow, ...] = ()
    quiet_at: float = QUIET_AT_S

    @property
    def is_rough(self) -> bool:
        """Whether messages are delayed, lost, duplicated or corrupted until `quiet_at`; blows are extra."""
        return self.delay_s > CALM_DELAY_S or max(self.drop, self.duplicate, self.corrupt) > 0

    def fall_quiet(self) -> None:
        self.delay_s, self.drop, self.duplicate, self.corrupt = CALM_DELAY_S, 0.0, 0.0, 0.0

    @classmethod
    def drawn(cls, seed: int) -> "Faults":
        chance = Chance(seed, "faults")
        return cls(
            delay_s=0.5 if chance.happens(0.5) else CALM_DELAY_S,
            drop=chance.uniform(0, 0.2) if chance.happens(0.4) else 0.0,
            duplicate=chance.uniform(0, 0.3) if chance.happens(0.4) else 0.0,
            corrupt=chance.uniform(0, 0.2) if chance.happens(0.3) else 0.0,
            grader_fails=0.02 if chance.happens(0.3) else 0.0,
            hangs=0.01 if chance.happens(0.2) else 0.0,
            rotten=0.3 if chance.happens(0.2) else 0.0,
            blows=(*(_blows(chance) if chance.happens(0.7) else ()), *_hangs(Chance(seed, "hangs"))),
        )


def _hangs(chance: Chance) -> tuple[Blow, ...]:
    if not chance.happens(0.2):
        return ()
    watched = [part for part in PARTS if part != "manager"]
    part = watched[chance.whole(0, len(watched) - 1)]
    return (Blow(at=chance.uniform(0.5, LAST_FAULT_S), part=part, which=chance.whole(0, 7), kind="hang"),)


def _blows(chance: Chance) -> tuple[Blow, ...]:
    blows: list[Blow] = []
    for _ in range(chance.whole(1, 3)):
        at = chance.uniform(0.5, LAST_FAULT_S)
        blows.append(_blow(chance, at))
        if chance.happens(0.3):  # two at once
            blows.append(_blow(chance, at))
    return tuple(sorted(blows, key=lambda blow: blow.at))


def from_outside(seed: int, *, num_replicas: int) -> tuple[Blow, ...]:
    """Requests to the run, and faults of driver and environment, drawn independently of all other faults."""
    chance = Chance(seed, "outside")
    blows: list[Blow] = []
    if chance.happens(0.2):
        for _ in range(chance.whole(1, 2)):
            at, size = chance.uniform(0.0, LAST_FAULT_S), chance.whole(1, num_replicas)
            blows.append(Blow(at=at, part="driver", kind="resize", which=size))
    if chance.happens(0.12):
        blows.append(Blow(at=chance.uniform(0.0, QUIET_AT_S), part="driver", kind="pause", which=0))
    for part, share in OUTSIDE:
        if chance.happens(share):
            kind: Literal["crash", "freeze"] = "crash" if part == "environment" and chance.happens(0.6) else "freeze"
            at, lasts_s = chance.uniform(0.0, LAST_FAULT_S), chance.uniform(0.2, 12.0)
            is_silent = chance.happens(0.5)
            which = Chance(seed, f"which {part}").whole(0, 7)
            blows.append(Blow(at=at, part=part, which=which, kind=kind, lasts_s=lasts_s, is_silent=is_silent))
    return tuple(blows)


def _blow(chance: Chance, at: float) -> Blow:
    part = PARTS[chance.whole(0, len(PARTS) - 1)]
    kind: Literal["crash", "freeze", "leave"] = "crash" if chance.happens(0.6) else "freeze"
    if part == "rollout" and chance.happens(0.2):
        kind = "leave"
    return Blow(
        at=at,
        part=part,
        which=chance.whole(0, 7),
        kind=kind,
        lasts_s=chance.uniform(0.2, 12.0),
        is_silent=chance.happens(0.4),
    )
