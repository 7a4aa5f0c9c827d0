"""The time of one decision of each brain that knows all replicas, from 10 of them to 100,000.

    data      a replica reports the end of a group and is granted another; a batch of as many groups as replicas
    repacker  a replica's report; a plan, where every replica holds a tail of an old version

CPU time of this process, of brains that are the engine's own; no bodies, no messages on a wire.
"""

import argparse
import time
from collections.abc import Iterator, Sequence
from typing import Final

from engine.pipeline.data.brain import DataBrain
from engine.pipeline.effects import Effect, Persist, Send
from engine.pipeline.manager.repacker import Repacker
from engine.pipeline.messages.message import Message
from engine.pipeline.messages.to_data import BatchWanted, Persisted, ReplicaSynced
from engine.pipeline.messages.to_manager import ReplicaReported
from engine.pipeline.messages.to_rollout import WorkGranted
from engine.pipeline.plan import Plan
from engine.pipeline.records import GroupTask, HeldGroup, SampleKey, Trajectory
from engine.policy.lineage import WeightsId
from engine.policy.schedule import PRESETS
from engine.scorecard.tables import Row, Spread
from engine.sim.chance import Chance
from tests.bench.engine.report import Report

REPLICAS: Final = (10, 100, 1_000, 10_000, 100_000)
GROUP_SIZE: Final = 4
NOW: Final = WeightsId(0, 1)
NEWER: Final = WeightsId(0, 2)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--replicas", type=int, nargs="+", default=REPLICAS)
    parser.add_argument("--messages", type=int, default=300, help="measured of each kind")
    parser.add_argument("--plans", type=int, default=3, help="of the repacker")


def measure(arguments: argparse.Namespace) -> Report:
    rows = [row for num in arguments.replicas for row in _rows(num, arguments.messages, arguments.plans)]
    return Report(
        bench="decisions",
        rows=rows,
        remarks=[
            f"each replica holds two groups of {GROUP_SIZE} samples; a message to data ends one and is granted one",
            "an O(log n) decision grows by the same amount with each row, an O(n) one tenfold",
        ],
    )


def _rows(num: int, messages: int, plans: int) -> Iterator[Row]:
    data = _Data(num)
    yield _row("data", "a message", num, data.messages(messages))
    yield _row("data", "a batch", num, data.batches())
    yield from _repacker(num, messages, plans)


def _row(brain: str, decision: str, num: int, seconds: Sequence[float]) -> Row:
    micros = [second * 1e6 for second in seconds]
    return {"brain": brain, "decision": decision, "replicas": num, **Spread.of(micros).columns("cpu_us")}


class _Data:
    """Data's brain, and the grants of each replica."""

    def __init__(self, num: int) -> None:
        self._num = num
        plan = Plan(
            schedule=PRESETS["laminar"],
            weight_slots=2,
            steps=10**6,
            groups_per_step=num,
            group_size=GROUP_SIZE,
            checkpoint_every=10**9,
            evaluation_prompts=1,
            evaluate_every=0,
            max_batch=2 * GROUP_SIZE,
        )
        self._brain = DataBrain(plan, start_step=1)
        self._held: list[list[GroupTask]] = [[] for _ in range(num)]
        self._serials = [0] * num
        for replica in range(num):
            self._handle(self._sync(replica, ended=()))
            self._handle(self._sync(replica, ended=()))

    def messages(self, num: int) -> list[float]:
        """Messages spread over the replicas; none ends more than it holds, and data has groups left to grant."""
        chosen = range(0, self._num, max(1, self._num // num))
        return [self._ends_one(replica) for replica in chosen][:num]

    def batches(self) -> list[float]:
        for replica in range(self._num):
            self._ends_one(replica)
        return [self._handle(BatchWanted(step=2, epoch=0, checkpointed=1))]

    def _ends_one(self, replica: int) -> float:
        return self._handle(self._sync(replica, ended=self._held[replica][:1]))

    def _sync(self, replica: int, *, ended: Sequence[GroupTask]) -> ReplicaSynced:
        self._serials[replica] += 1
        kept = self._held[replica] = self._held[replica][len(ended) :]
        wants = GROUP_SIZE * (2 - len(kept))
        return ReplicaSynced(
            replica=replica,
            incarnation=0,
            serial=self._serials[replica],
            weights=NOW,
            wants=wants,
            room=wants,
            groups=tuple(HeldGroup(key=task.key, lease=task.lease, samples=task.samples, weights=NOW) for task in kept),
            finished=tuple(
                Trajectory(key=SampleKey(group=task.key, sample=sample), weights=NOW, reward=1.0, num_tokens=100)
                for task in ended
                for sample in task.samples
            ),
        )

    def _handle(self, message: Message) -> float:
        """The seconds of the decision; writes to disk take no time and do not count."""
        began = time.process_time()
        effects = self._brain.handle(message, 0.0)
        took_s = time.process_time() - began
        self._take(effects)
        return took_s

    def _take(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case Persist():
                    self._take(self._brain.handle(Persisted(serial=effect.serial), 0.0))
                case Send(message=WorkGranted() as granted):
                    self._held[effect.to.number] += granted.tasks


def _repacker(num: int, messages: int, plans: int) -> Iterator[Row]:
    repacker = Repacker(_plan_of_tails())
    chance = Chance(1, "tails")
    reports = [
        ReplicaReported(
            replica=replica,
            incarnation=0,
            weights=NOW,
            num_running=chance.whole(1, 120),
            kv_used=chance.uniform(0.02, 0.85),
            num_tokens=0,
        )
        for replica in range(num)
    ]
    planned, received = list[float](), list[float]()
    for at in range(plans):
        for report in reports:
            began = time.process_time()
            repacker.receive(report)
            if at == 0 and len(received) < messages:
                received.append(time.process_time() - began)
        began = time.process_time()
        if at == 0:
            repacker.on_updated(NEWER, 0.0)
        else:
            repacker.on_tick(10.0 * at)
        planned.append(time.process_time() - began)
    yield _row("repacker", "a report", num, received)
    yield _row("repacker", "a plan", num, planned)


def _plan_of_tails() -> Plan:
    return Plan(
        schedule=PRESETS["laminar"],
        weight_slots=2,
        steps=10,
        groups_per_step=1,
        group_size=GROUP_SIZE,
        checkpoint_every=10**9,
        evaluation_prompts=1,
        evaluate_every=0,
        max_batch=256,
    )
