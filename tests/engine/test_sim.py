"""The brains under every kind of weather. A failing seed prints the command that replays it."""

import pytest

from engine.pipeline.effects import Effect
from engine.pipeline.messages import ChunkHashed
from engine.pipeline.relay import RelayBrain
from engine.sim.chance import Chance
from engine.sim.checks import InvariantBroken
from engine.sim.faults import Faults
from engine.sim.scenario import ScheduleName, replay_command, simulate
from engine.sim.world import Outcome

SEEDS_PER_TEST = 50


def run(seed: int, schedule: ScheduleName, faults: Faults | None = None) -> Outcome:
    try:
        return simulate(seed, schedule, faults)
    except Exception as error:  # noqa: BLE001 - whatever it is, the seed must be told
        pytest.fail(f"{type(error).__name__}: {error}\n{replay_command(seed, schedule)}")


@pytest.mark.parametrize("schedule", ["laminar", "sync"])
@pytest.mark.parametrize("first", range(0, 250, SEEDS_PER_TEST))
def test_no_fault_order_breaks_an_invariant(schedule: ScheduleName, first: int) -> None:
    for seed in range(first, first + SEEDS_PER_TEST):
        run(seed, schedule)


# Seeds that once failed, each with what it found.
@pytest.mark.parametrize(
    ("seed", "schedule"),
    [
        (36, "laminar"),  # a second copy of a version overwrote bytes whose hashes were taken
        (913, "laminar"),  # a replica never heard that it should evaluate, and nobody said it again
    ],
)
def test_seeds_that_once_failed(seed: int, schedule: ScheduleName) -> None:
    run(seed, schedule)


def test_a_seed_is_a_run() -> None:
    first, second = run(36, "laminar"), run(36, "laminar")
    assert (first.virtual_s, first.num_events) == (second.virtual_s, second.num_events)


def test_sync_is_never_stale_and_laminar_is_faster() -> None:
    calm = Faults()
    times = {"sync": 0.0, "laminar": 0.0}
    for seed in range(40):
        sync, laminar = run(seed, "sync", calm), run(seed, "laminar", calm)
        assert max(sync.oracle.staleness) == 0
        times["sync"] += sync.virtual_s
        times["laminar"] += laminar.virtual_s
    assert times["laminar"] < times["sync"]


def test_the_oracle_sees_a_planted_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    """A relay that trusts what it is sent."""

    def trusting(self: RelayBrain, message: ChunkHashed) -> list[Effect]:
        arrival = self._arriving[message.version]
        arrival.right_chunks.add(message.index)
        return []

    monkeypatch.setattr(RelayBrain, "_on_chunk", trusting)
    monkeypatch.setattr(RelayBrain, "_refuse", lambda self, version, reason: [])
    with pytest.raises((InvariantBroken, KeyError)):
        for seed in range(200):
            simulate(seed, "laminar", Faults(corrupt=0.3))


def test_chance_is_the_same_everywhere() -> None:
    chance = Chance(1, "test")
    assert [chance.whole(0, 99) for _ in range(5)] == [43, 49, 26, 81, 48]
    assert all(0 <= chance.uniform() < 1 for _ in range(100))
