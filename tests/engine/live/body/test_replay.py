"""A recorded brain repeats its decisions: in memory, and from the file that a run leaves."""

from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from engine.live.body.recording import Recording, plain
from engine.live.body.replaying import replay
from engine.pipeline.data.brain import DataBrain
from engine.pipeline.driver.brain import DriverBrain
from engine.pipeline.effects import Effect
from engine.pipeline.manager.brain import ManagerBrain
from engine.pipeline.manager.placing import Placing
from engine.pipeline.messages.addresses import (
    DATA,
    DRIVER,
    MANAGER,
    RELAY,
    TRAINER,
    Address,
    environment_address,
    rollout_address,
)
from engine.pipeline.messages.message import Message, Tick
from engine.pipeline.messages.to_data import BatchWanted, TrainingEnded
from engine.pipeline.messages.to_driver import PauseAsked
from engine.pipeline.messages.to_manager import HostsObserved, PartLost, PartReported
from engine.pipeline.messages.to_trainer import TrainerLoaded
from engine.pipeline.packed import Bytes
from engine.pipeline.plan import Plan
from engine.pipeline.records import DataProgress
from engine.pipeline.relay.brain import RelayBrain
from engine.pipeline.rollout.brain import RolloutBrain
from engine.pipeline.trainer.brain import TrainerBrain
from engine.policy.lineage import WeightsId
from engine.policy.placement import JobNeeds, plan_places
from engine.policy.recovery import Patience
from engine.policy.rooms import HostView
from engine.sim.cluster import Brains
from engine.sim.scenario import world_of
from engine.spec.job import JobSpec

RECORDED: list[tuple[Any, list[tuple[float, Message]], list[list[Effect]]]] = []
"""A brain in its initial state, its messages, and its decisions."""


def test_recording_leaves_out_the_routes_of_a_mixture() -> None:
    """Brains only join them; as numbers in JSON they would take a thousand letters a token."""
    assert plain(Bytes(bytes(range(256)))) == []


def recorded(kind: type) -> type:
    class Recorded(kind):  # type: ignore[misc]
        def __init__(self, *positional: Any, **options: Any) -> None:
            # A deep copy: the manager's repacker has a state of its own.
            RECORDED.append((kind(*deepcopy(positional), **deepcopy(options)), [], []))
            self._messages, self._decided = RECORDED[-1][1:]
            super().__init__(*positional, **options)

        def handle(self, message: Message, now: float) -> list[Effect]:
            effects: list[Effect] = super().handle(message, now)
            self._messages.append((now, message))
            self._decided.append(list(effects))
            return effects

    return Recorded


@pytest.mark.long
def test_every_component_repeats_its_decisions() -> None:
    RECORDED.clear()
    brains = Brains(
        data=recorded(DataBrain),
        rollout=recorded(RolloutBrain),
        relay=recorded(RelayBrain),
        trainer=recorded(TrainerBrain),
        manager=recorded(ManagerBrain),
        driver=recorded(DriverBrain),
    )
    for seed in (2, 21):
        world_of(seed, "laminar", brains=brains).run()
    assert {type(brain) for brain, _, _ in RECORDED} == {
        DataBrain, RolloutBrain, RelayBrain, TrainerBrain, ManagerBrain, DriverBrain,
    }  # fmt: skip
    for brain, received, decided in RECORDED:
        assert [brain.handle(message, now) for now, message in received] == decided and decided


SPEC = JobSpec(name="recorded")
ENVIRONMENT = environment_address(0)
PLAN = Plan.from_spec(SPEC)
NEEDS = JobNeeds.of_spec(SPEC, has_gpus=False)
HOSTS = (HostView(id="a", name="a", cpus=2.0, free_cpus=2.0),)
PLACES = plan_places(HOSTS, NEEDS, num_replicas=1)


@pytest.mark.parametrize(
    ("part", "brain", "built_with", "received"),
    [
        (
            DATA,
            DataBrain(PLAN, progress=DataProgress(ended=((0, 3),))),
            {"plan": plain(PLAN), "start_step": 0, "progress": plain(DataProgress(ended=((0, 3),)))},
            [Tick(), BatchWanted(step=1), TrainingEnded(weights=WeightsId(0, 0))],
        ),
        (
            TRAINER,
            TrainerBrain(PLAN, epoch=0),
            {"plan": plain(PLAN), "epoch": 0},
            [TrainerLoaded(step=0, num_parameters=7), Tick()],
        ),
        (
            DRIVER,
            DriverBrain(PLAN, now=0.0, num_replicas=1, max_replicas=2, patience=Patience(silent_s=9.0)),
            {
                "plan": plain(PLAN),
                "now": 0.0,
                "num_replicas": 1,
                "max_replicas": 2,
                "patience": plain(Patience(silent_s=9.0)),
            },
            [
                PauseAsked(request_id="p"),
                PartReported(part=ENVIRONMENT, incarnation=0),
                PartLost(part=ENVIRONMENT, incarnation=0, reason="killed"),
                Tick(),
            ],
        ),
        (
            MANAGER,
            ManagerBrain(
                now=0.0,
                incarnations={DATA: 0, TRAINER: 0, RELAY: 0, rollout_address(0): 0},
                away=[rollout_address(1)],
                waiting=[rollout_address(2)],
                placing=Placing(NEEDS, PLACES, HOSTS),
                patience=Patience(silent_s=0.5),
            ),
            {
                "plan": plain(PLAN),
                "now": 0.0,
                "incarnations": {"data": 0, "trainer": 0, "relay/0": 0, "rollout/0": 0},
                "away": ["rollout/1"],
                "waiting": ["rollout/2"],
                "needs": plain(NEEDS),
                "places": plain(PLACES),
                "hosts": plain(HOSTS),
                "patience": plain(Patience(silent_s=0.5)),
            },
            [
                PartReported(part=TRAINER, incarnation=0),
                Tick(),
                HostsObserved(hosts=HOSTS),
                PartLost(part=DATA, incarnation=0, reason="killed"),
                HostsObserved(hosts=()),
            ],
        ),
    ],
)
def test_recording_replays_and_another_history_diverges(
    part: Address, brain: Any, built_with: Mapping[str, object], received: list[Message], tmp_path: Path
) -> None:
    file = tmp_path / "log.jsonl"
    recording = Recording(file, part=part, built_with=built_with)
    for now, message in enumerate(received):
        recording.note(float(now), message, brain.handle(message, float(now)))
    name, decisions = replay(file)
    replayed = list(decisions)
    assert name == part and len(replayed) == len(received)
    assert all(decision.is_the_same for decision in replayed) and any(decision.effects for decision in replayed)
    file.write_text(file.read_text().replace('"decided":"', '"decided":"x'))
    assert not any(decision.is_the_same for decision in replay(file)[1])


def test_recording_of_an_unknown_part_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"
    Recording(file, part=ENVIRONMENT, built_with={"plan": plain(PLAN)})
    with pytest.raises(ValueError, match="environment, which has no brain"):
        replay(file)
    file.write_text(file.read_text().replace('"part":"environment"', '"part":"x"'))
    with pytest.raises(ValueError, match="'x' is not an address"):
        replay(file)
