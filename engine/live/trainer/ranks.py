"""A trainer of several devices: rank 0 in this process, every other rank in an actor of its own.

    caller ──▶ RankGroup ──▶ rank 0 in this process
                   └──▶ actor of rank 1 … n-1: the same call, at the same time

Invariants:
- every rank makes the same calls in the same order with the same arguments; the answer is rank 0's;
- every wait is bounded: a rank that dies closes its connections, which ends the waits of the others; a rank whose call
  fails is killed so that it closes them; a frozen rank times out after `timeout_s`. In each case the caller gets one
  exception that names the rank;
- after an exception the group is closed: the ranks' states may differ by half a step. No rank outlives the group or its
  owner. But all ranks refuse a damaged checkpoint before they change anything, and continue unchanged;
- each rank writes a checkpoint on a thread of its own while all train on. A failed write does not close the group: the
  caller decides;
- ranks on hosts that do not share the checkpoint folder need a store; without one the group refuses to start.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import ray
from ray.exceptions import OutOfMemoryError, RayError, RayTaskError

from engine.live.checkpoints.apart import address_of, bring, is_elsewhere, make_mark, no_damaged_copy, own_root
from engine.live.checkpoints.store import RemoteCheckpoints
from engine.live.process.deadline import LOOK_UP_EVERY_S, AwakeDeadline
from engine.live.process.kernel_kills import KernelKills, MemoryReport
from engine.live.process.memory import describe_error, says_out_of_memory
from engine.live.trainer.failed_ranks import end_failed
from engine.live.trainer.rank_actor import MakeTrainer, TrainerRankActor, fetched_on
from engine.live.trainer.rank_progress import RankProgress
from engine.live.trainer.shares import RankShare
from engine.process.progress import progress_reporter, report_progress
from engine.spec.checkpoint_manifest import MANIFEST_FILE, CheckpointPart
from engine.training.batch import TrainingBatch, Trajectories
from engine.training.checkpoint.folder import CheckpointUnverified
from engine.training.port import StepResult, Write
from engine.weights.port import LowRank, Probe, TensorEntry

if TYPE_CHECKING:  # it imports torch
    from engine.training.trainer import Trainer

# Ray starts a process, which imports torch; on a busy machine that alone is half a minute.
STARTED_WITHIN_S: Final = 300.0
# The time that the other ranks get to report their errors, once one rank has failed.
SETTLED_WITHIN_S: Final = 5.0
WRITING: Final = "writing"  # the rank's thread that writes checkpoints

Answer = TypeVar("Answer")


class RankFailed(Exception):
    """A rank of the trainer died, timed out or raised."""

    retryable = True  # from the last checkpoint, with new ranks

    def __init__(self, message: str = "") -> None:
        super().__init__(message or type(self).__doc__)

    @classmethod
    def of(cls, failures: Sequence[str]) -> "RankFailed":
        """A rank that ran out of memory comes first: the others only lost a connection."""
        return cls("; ".join(sorted(failures, key=lambda each: not says_out_of_memory(each))))


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
        """`options`: Ray options of each rank but the first, which has `device`. `checkpoints`: the folder of all
        checkpoints; `recorded`: the folder of a step to record. `fetch`: runs on each rank before it is built."""
        from engine.training.ranks.world import COLLECTIVE_TIMEOUT_S, World  # imports torch, which few actors need

        self._timeout_s = COLLECTIVE_TIMEOUT_S if timeout_s is None else timeout_s
        remote: Any = ray.remote(concurrency_groups={WRITING: 1})(TrainerRankActor)  # type: ignore[call-overload]
        self._others: list[Any] = [remote.options(**{**each, "max_restarts": 0}).remote() for each in options]
        self._trainer: Trainer | None = None
        self._kills = KernelKills()
        self._watcher = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ranks")
        num_ranks = 1 + len(self._others)
        try:
            starts = [other.started.remote() for other in self._others]
            failures = self._collect_failures(starts, within_s=STARTED_WITHIN_S)
            if failures := failures or self._collect_failures(fetched_on(self._others, fetch), within_s=0):
                raise RankFailed.of(failures)
            if recorded is not None:
                self._check_recording(recorded)
            self._are_apart = checkpoints is not None and self._check_sharing(checkpoints)
            self._world = world = World.open(num_ranks=num_ranks, host=_own_address(), timeout_s=self._timeout_s)
            place = {"address": world.address, "num_ranks": num_ranks, "timeout_s": self._timeout_s}
            place["checkpoints"] = checkpoints
            self._trainer = self._run_together(
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
        """The tensors of a published version."""
        return self._own.published.entries

    @property
    def low_rank(self) -> LowRank | None:
        """The adapter's shape; None if versions are whole models."""
        return self._own.published.low_rank

    def train_step(self, trajectories: Trajectories) -> StepResult:
        batch = TrainingBatch.of(trajectories)
        shared = ray.put(batch)  # ranks of a host map its arrays in place, and read the pages of their own share
        return self._run_together(self._call_others("train_step", shared), lambda: self._own.train_step(batch))

    def probe(self) -> Probe:
        return self._run_together(self._call_others("probe"), lambda: self._own.probe())

    def request(self, call: str, arguments: Mapping[int, tuple[object, ...]]) -> dict[int, Any]:
        """Calls the shares of these ranks, each with its own arguments; returns the answers by rank."""
        others = {rank: self._call_share(rank, call, arguments[rank]) for rank in arguments if rank}
        own = partial(getattr(self._share, call), *arguments[0]) if 0 in arguments else None
        answer = self._run_together(list(others.values()), own or (lambda: None), ranks=list(others))
        return {**({0: answer} if own else {}), **{rank: ray.get(other) for rank, other in others.items()}}

    def send(self, call: str, arguments: Mapping[int, tuple[object, ...]]) -> None:
        """As `request`, for quick calls without an answer."""
        for rank, each in arguments.items():
            if rank:
                self._call_share(rank, call, each)
            else:
                getattr(self._share, call)(*each)

    def _call_share(self, rank: int, call: str, arguments: tuple[object, ...]) -> Any:
        return self._others[rank - 1].share.remote(call, *arguments)

    def get_ready_to_save(self) -> None:
        self._run_together(self._call_others("get_ready_to_save"), lambda: self._own.get_ready_to_save())

    def prepare_save(self, folder: Path) -> Write:
        own = self._run_together(self._call_others("prepare_save", folder), lambda: self._own.prepare_save(folder))
        return partial(self._write, own)

    def _write(self, own: Write) -> Mapping[str, CheckpointPart]:
        """Called on the writing thread. The ranks wait for each other's files."""
        others = [other.write.options(concurrency_group=WRITING).remote() for other in self._others]
        try:
            parts = own()
        except Exception as error:
            failures = self._collect_failures(others, within_s=SETTLED_WITHIN_S)
            if hasattr(error, "retryable"):  # it names the rank
                raise
            raise RankFailed.of([*failures, f"rank 0: {_describe(error)}"]) from error
        if failures := self._await_failures(others):
            raise RankFailed.of(failures)
        return parts

    def load(self, folder: Path) -> None:
        """Raises `CheckpointUnverified`, which names rank and file."""
        with no_damaged_copy(folder):
            if self._are_apart or is_elsewhere(folder):
                self._fetch_parts(folder)
            self._run_together([other.load.remote(folder) for other in self._others], lambda: self._own.load(folder))

    def _check_sharing(self, checkpoints: Path) -> bool:
        """Whether some ranks do not see this folder. Raises `ValueError` if they do not and there is no store."""
        blind = self._find_blind_ranks(checkpoints)
        if blind and RemoteCheckpoints.from_environment() is None:
            raise ValueError(
                f"LAMINAR_STORE_DIR: {blind} of the trainer cannot see {checkpoints} of rank 0's host; share that "
                f"folder between the trainer's hosts, or set LAMINAR_STORE_URL to a checkpoint store"
            )
        return bool(blind)

    def _check_recording(self, folder: Path) -> None:
        """Raises `ValueError` if some ranks do not see this folder: every rank writes its part of the step there."""
        if blind := self._find_blind_ranks(folder):
            raise ValueError(
                f"--record-step: every rank writes into {folder} of rank 0's host, which {blind} of the trainer "
                f"cannot see; share it between the trainer's hosts, or record a job whose trainer is on one host"
            )

    def _find_blind_ranks(self, folder: Path) -> str:
        """Names the ranks that do not see this folder of rank 0's host."""
        mark = make_mark(folder)
        try:
            sees = ray.get([other.look_for.remote(mark, own_root()) for other in self._others])
        finally:
            mark.unlink()
        return ", ".join(f"rank {rank}" for rank, seen in enumerate(sees, start=1) if not seen)

    def _fetch_parts(self, folder: Path) -> None:
        """Has each rank fetch the parts that it needs and lacks."""
        source = (folder, address_of(folder), (folder / MANIFEST_FILE).read_bytes())
        others = [other.bring.remote(*source) for other in self._others]
        bring(self._own, *source)
        if failures := self._await_failures(others):
            self._end_others()
            raise RankFailed.of(failures)
        if lacking := [f"rank {rank}: {each}" for rank, each in enumerate(ray.get(others), start=1) if each]:
            raise CheckpointUnverified("; ".join(lacking))

    def _await_failures(self, others: list[Any]) -> list[str]:
        """`_collect_failures` without a timeout: working ranks report progress, which this loop forwards."""
        progress, left = RankProgress(self._world.num_reports, report_progress), others
        while left:
            _, left = ray.wait(left, num_returns=len(left), timeout=LOOK_UP_EVERY_S)
            progress.pass_on()
        return self._collect_failures(others, within_s=SETTLED_WITHIN_S)

    def close(self) -> None:
        """Idempotent, also after a failure."""
        self._end_others()
        if self._trainer is not None:
            self._trainer.close()
            self._trainer = None

    @property
    def _own(self) -> "Trainer":
        assert self._trainer is not None, "the group is closed"
        return self._trainer

    def _call_others(self, call: str, *arguments: object) -> list[Any]:
        return [other.run.remote(call, *arguments) for other in self._others]

    def _run_together(self, others: list[Any], own: Callable[[], Answer], *, ranks: Sequence[int] = ()) -> Answer:
        """Runs `own` and waits for the calls of others. `ranks`: the callees; empty: all others."""
        actors = [self._others[rank - 1] for rank in ranks or range(1, len(others) + 1)]
        progress = RankProgress(self._world.num_reports, progress_reporter())
        self._watcher.submit(end_failed, dict(zip(others, actors, strict=True)), meanwhile=progress.pass_on)
        try:
            answer = own()
        except Exception as error:
            # If another rank is to blame, this one only lost a connection, and the other reports the cause.
            failures = self._collect_failures(others, ranks, within_s=SETTLED_WITHIN_S)
            if isinstance(error, CheckpointUnverified):
                raise
            self._end_others()
            if isinstance(error, ValueError) or hasattr(error, "retryable"):
                raise
            raise RankFailed.of([*failures, f"rank 0: {_describe(error)}"]) from error
        if failures := self._collect_failures(others, ranks, within_s=self._timeout_s):
            self._end_others()
            raise RankFailed.of(failures)
        return answer

    def _collect_failures(self, others: list[Any], ranks: Sequence[int] = (), *, within_s: float) -> list[str]:
        """A sentence for each rank whose call failed or did not end in time."""
        failures: list[str] = []
        deadline, unanswered = AwakeDeadline(within_s), others
        while unanswered and deadline.left_s():
            _, unanswered = ray.wait(unanswered, num_returns=len(unanswered), timeout=deadline.slice_s())
        for rank, other in zip(ranks or range(1, len(others) + 1), others, strict=True):
            if other in unanswered:
                failures.append(f"rank {rank}: no answer")
                continue
            try:
                if isinstance(answer := ray.get(other), MemoryReport):
                    self._kills.record(f"rank {rank}", answer)
            except RayTaskError as error:
                failures.append(f"rank {rank}: {_describe(error.cause)}")
            except OutOfMemoryError:
                failures.append(f"rank {rank}: killed, its host ran out of memory")
            except RayError:
                why = ", its host ran out of memory" if self._kills.explain(f"rank {rank}") else ""
                failures.append(f"rank {rank}: its process has died{why}")
        return failures

    def _end_others(self) -> None:
        for other in self._others:
            ray.kill(other)
        self._others = []


def _own_address() -> str:
    address: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    return address


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {describe_error(error)}"
