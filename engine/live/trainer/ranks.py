"""A trainer of several devices: rank 0 in this process, every other rank in an actor of its own.

    caller ──▶ RankGroup ──▶ its own rank 0
                   └──▶ actor of rank 1 … n-1: the same call, at the same time

Invariants:
- every rank makes the same calls in the same order with the same arguments; the answer is rank 0's;
- nothing is waited for without a bound: a rank that dies closes its connections, which ends what the others wait for,
  and one whose call fails is ended for that; one that is frozen is given up after `timeout_s`. Either way the caller
  gets one exception that names the rank;
- after an exception the group is over: the ranks' states may differ by half a step. No rank outlives it, or its owner.
  But a checkpoint that a rank finds damaged is refused by all before anything is changed, and they go on as they are;
- a checkpoint is written on a thread of its own on every rank, while all train on. One that could not be written ends
  nothing: that is for the caller to decide;
- ranks on hosts that do not share the folder of checkpoints need a store; without one they are refused at the start.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import ray
from ray.exceptions import OutOfMemoryError, RayError, RayTaskError

from engine.live.checkpoints.apart import address_of, bring, is_elsewhere, make_mark, no_damaged_copy, own_root
from engine.live.checkpoints.store import RemoteCheckpoints
from engine.live.process.deadline import LOOK_UP_EVERY_S, AwakeDeadline
from engine.live.process.kernel_kills import HostKills, KernelKills
from engine.live.process.memory import says_out_of_memory, told
from engine.live.trainer.failed_ranks import end_failed
from engine.live.trainer.rank_actor import ClosableTrainer, MakeTrainer, TrainerRankActor, fetched_on
from engine.live.trainer.rank_signs import RankSigns
from engine.live.trainer.shares import RankShare
from engine.signs import sign_from_anywhere, still_here
from engine.spec.checkpoint_manifest import MANIFEST_FILE, CheckpointPart
from engine.training.batch import TrainingBatch, Trajectories
from engine.training.checkpoint.folder import CheckpointUnverified
from engine.training.port import StepResult, Write
from engine.weights.port import LowRank, Probe, TensorEntry

# Ray starts a process, which imports torch; on a busy machine that alone is half a minute.
STARTED_WITHIN_S: Final = 300.0
# What the others get, once one rank has failed, to say what they saw.
SETTLED_WITHIN_S: Final = 5.0
WRITING: Final = "writing"  # the thread of a rank's that writes checkpoints

Answer = TypeVar("Answer")


class RankFailed(Exception):
    """A rank of the trainer has died, was too slow or raised."""

    retryable = True  # from the last checkpoint, with new ranks

    def __init__(self, message: str = "") -> None:
        super().__init__(message or type(self).__doc__)

    @classmethod
    def of(cls, found: Sequence[str]) -> "RankFailed":
        """Who ran out of memory comes first: the others have only lost a connection."""
        return cls("; ".join(sorted(found, key=lambda each: not says_out_of_memory(each))))


class RankGroup:
    def __init__(
        self,
        make: MakeTrainer,
        *,
        device: str,
        options: Sequence[Mapping[str, Any]],
        timeout_s: float | None = None,
        checkpoints: Path | None = None,
        recorded: Path | None = None,
        fetch: Callable[[], None] | None = None,
    ) -> None:
        """`options`: what Ray is asked for each rank but the first, which has `device`. `checkpoints`: the folder of
        their folders; `recorded`: that of a step that will be recorded. `fetch`: before any can be made."""
        from engine.training.ranks.world import COLLECTIVE_TIMEOUT_S, World  # torch, which not every actor needs

        self._timeout_s = COLLECTIVE_TIMEOUT_S if timeout_s is None else timeout_s
        with_groups: Any = ray.remote(concurrency_groups={WRITING: 1})  # type: ignore[call-overload]
        remote = with_groups(TrainerRankActor)
        self._others: list[Any] = [remote.options(**{**each, "max_restarts": 0}).remote() for each in options]
        self._trainer: ClosableTrainer | None = None
        self._kills = KernelKills()
        self._watcher = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ranks")
        num_ranks = 1 + len(self._others)
        try:
            found = self._failures([other.started.remote() for other in self._others], within_s=STARTED_WITHIN_S)
            found = found or self._failures(fetched_on(self._others, fetch), within_s=0)
            if found:
                raise RankFailed.of(found)
            if recorded is not None:
                self._refuse_recording(recorded)
            self._are_apart = checkpoints is not None and self._look(checkpoints)
            self._world = world = World.open(num_ranks=num_ranks, host=_own_address(), timeout_s=self._timeout_s)
            place = {"address": world.address, "num_ranks": num_ranks, "timeout_s": self._timeout_s}
            place["checkpoints"] = checkpoints
            self._trainer = self._together(
                [other.build.remote(make, rank=rank, **place) for rank, other in enumerate(self._others, start=1)],
                lambda: make(device=device, world=world),
            )
            self._share = RankShare(self._trainer)
        except BaseException:
            self._end_others()
            raise

    @property
    def num_parameters(self) -> int:
        return self._own.num_parameters

    @property
    def num_ranks(self) -> int:
        return 1 + len(self._others)

    @property
    def entries(self) -> tuple[TensorEntry, ...]:
        """Of a published version."""
        return self._own.published.entries

    @property
    def low_rank(self) -> LowRank | None:
        """Where a version is an adapter."""
        return self._own.published.low_rank

    def train_step(self, trajectories: Trajectories) -> StepResult:
        batch = TrainingBatch.of(trajectories)
        shared = ray.put(batch)  # ranks of a host map its arrays where they lie, and read the pages of their own share
        return self._together(self._tell("train_step", shared), lambda: self._own.train_step(batch))

    def probe(self) -> Probe:
        return self._together(self._tell("probe"), lambda: self._own.probe())

    def ask(self, call: str, arguments: Mapping[int, tuple[object, ...]]) -> dict[int, Any]:
        """The answers of these ranks' shares, by rank; each is asked with arguments of its own."""
        others = {rank: self._ask(rank, call, arguments[rank]) for rank in arguments if rank}
        own = partial(getattr(self._share, call), *arguments[0]) if 0 in arguments else None
        answer = self._together(list(others.values()), own or (lambda: None), ranks=list(others))
        return {**({0: answer} if own else {}), **{rank: ray.get(other) for rank, other in others.items()}}

    def tell(self, call: str, arguments: Mapping[int, tuple[object, ...]]) -> None:
        """As `ask`, of what answers at once and without a word."""
        for rank, each in arguments.items():
            if rank:
                self._ask(rank, call, each)
            else:
                getattr(self._share, call)(*each)

    def _ask(self, rank: int, call: str, arguments: tuple[object, ...]) -> Any:
        return self._others[rank - 1].share.remote(call, *arguments)

    def get_ready_to_save(self) -> None:
        self._together(self._tell("get_ready_to_save"), lambda: self._own.get_ready_to_save())

    def prepare_save(self, folder: Path) -> Write:
        own = self._together(self._tell("prepare_save", folder), lambda: self._own.prepare_save(folder))
        return partial(self._write, own)

    def _write(self, own: Write) -> Mapping[str, CheckpointPart]:
        """On the thread that writes; the ranks wait for each other's files."""
        others = [other.write.options(concurrency_group=WRITING).remote() for other in self._others]
        try:
            parts = own()
        except Exception as error:
            found = self._failures(others, within_s=SETTLED_WITHIN_S)
            if hasattr(error, "retryable"):  # it names the rank
                raise
            raise RankFailed.of([*found, f"rank 0: {_brief(error)}"]) from error
        if found := self._patiently(others):
            raise RankFailed.of(found)
        return parts

    def load(self, folder: Path) -> None:
        """Raises `CheckpointUnverified`, which names rank and file."""
        with no_damaged_copy(folder):
            if self._are_apart or is_elsewhere(folder):
                self._bring(folder)
            self._together([other.load.remote(folder) for other in self._others], lambda: self._own.load(folder))

    def _look(self, checkpoints: Path) -> bool:
        """Whether there are ranks that do not see this folder. Raises `ValueError`."""
        blind = self._blind(checkpoints)
        if blind and RemoteCheckpoints.from_environment() is None:
            raise ValueError(
                f"LAMINAR_STORE_DIR: {blind} of the trainer cannot see {checkpoints} of rank 0's host; have "
                f"the trainer's hosts share that folder, or name a store for checkpoints in LAMINAR_STORE_URL"
            )
        return bool(blind)

    def _refuse_recording(self, folder: Path) -> None:
        """A recorded step is one folder, to which every rank adds its part. Raises `ValueError`."""
        if blind := self._blind(folder):
            raise ValueError(
                f"--record-step: every rank writes into {folder}, and {blind} of the trainer cannot see that of rank "
                f"0's host; have the trainer's hosts share it, or record a job whose trainer is on one host"
            )

    def _blind(self, folder: Path) -> str:
        """The ranks that do not see this folder of rank 0's host."""
        mark = make_mark(folder)
        try:
            sees = ray.get([other.look_for.remote(mark, own_root()) for other in self._others])
        finally:
            mark.unlink()
        return ", ".join(f"rank {rank}" for rank, seen in enumerate(sees, start=1) if not seen)

    def _bring(self, folder: Path) -> None:
        """What each rank needs and does not have, onto its host."""
        what = (folder, address_of(folder), (folder / MANIFEST_FILE).read_bytes())
        others = [other.bring.remote(*what) for other in self._others]
        bring(self._own, *what)
        if found := self._patiently(others):
            self._end_others()
            raise RankFailed.of(found)
        if lacking := [f"rank {rank}: {each}" for rank, each in enumerate(ray.get(others), start=1) if each]:
            raise CheckpointUnverified("; ".join(lacking))

    def _patiently(self, others: list[Any]) -> list[str]:
        """`_failures`, however long they take: a rank that works gives signs, which this loop passes on."""
        signs, left = RankSigns(self._world.num_signs, still_here), others
        while left:
            _, left = ray.wait(left, num_returns=len(left), timeout=LOOK_UP_EVERY_S)
            signs.pass_on()
        return self._failures(others, within_s=SETTLED_WITHIN_S)

    def close(self) -> None:
        """Also after a failure, and twice."""
        self._end_others()
        if self._trainer is not None:
            self._trainer.close()
            self._trainer = None

    @property
    def _own(self) -> ClosableTrainer:
        assert self._trainer is not None, "the group is closed"
        return self._trainer

    def _tell(self, call: str, *arguments: object) -> list[Any]:
        return [other.run.remote(call, *arguments) for other in self._others]

    def _together(self, others: list[Any], own: Callable[[], Answer], *, ranks: Sequence[int] = ()) -> Answer:
        """`ranks`: the others', if not all are meant."""
        actors = [self._others[rank - 1] for rank in ranks or range(1, len(others) + 1)]
        signs = RankSigns(self._world.num_signs, sign_from_anywhere())
        self._watcher.submit(end_failed, dict(zip(others, actors, strict=True)), meanwhile=signs.pass_on)
        try:
            answer = own()
        except Exception as error:
            # When another rank is to blame, this one has only lost a connection, and it is there to say why.
            found = self._failures(others, ranks, within_s=SETTLED_WITHIN_S)
            if isinstance(error, CheckpointUnverified):
                raise
            self._end_others()
            if isinstance(error, ValueError) or hasattr(error, "retryable"):
                raise
            raise RankFailed.of([*found, f"rank 0: {_brief(error)}"]) from error
        found = self._failures(others, ranks, within_s=self._timeout_s)
        if found:
            self._end_others()
            raise RankFailed.of(found)
        return answer

    def _failures(self, others: list[Any], ranks: Sequence[int] = (), *, within_s: float) -> list[str]:
        """A sentence for each rank that did not end its call well."""
        found: list[str] = []
        deadline, unanswered = AwakeDeadline(within_s), others
        while unanswered and deadline.left_s():
            _, unanswered = ray.wait(unanswered, num_returns=len(unanswered), timeout=deadline.slice_s())
        for rank, other in zip(ranks or range(1, len(others) + 1), others, strict=True):
            if other in unanswered:
                found.append(f"rank {rank}: no answer")
                continue
            try:
                if isinstance(answer := ray.get(other), HostKills):
                    self._kills.hear(f"rank {rank}", answer)
            except RayTaskError as error:
                found.append(f"rank {rank}: {_brief(error.cause)}")
            except OutOfMemoryError:
                found.append(f"rank {rank}: killed, its host ran out of memory")
            except RayError:
                why = ", its host ran out of memory" if self._kills.explain(f"rank {rank}") else ""
                found.append(f"rank {rank}: its process has died{why}")
        return found

    def _end_others(self) -> None:
        for other in self._others:
            ray.kill(other)
        self._others = []


def _own_address() -> str:
    address: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    return address


def _brief(error: BaseException) -> str:
    return f"{type(error).__name__}: {told(error)}"
