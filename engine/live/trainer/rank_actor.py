"""One rank of a trainer of several devices, other than the first: an actor that runs the calls of rank 0.

Invariants:
- a rank whose call fails closes its connections, so that no rank waits for its data; a rank that cannot build its
  trainer (its host may lack the model) joins the others first; all ranks refuse a damaged checkpoint alike and continue
  unchanged;
- a checkpoint is written on a thread of its own, to the rank's own folder.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import ray

from engine.live.checkpoints.apart import HostFolders, bring, no_damaged_copy, upload_own
from engine.live.process.devices import claim_device
from engine.live.process.kernel_kills import MemoryReport, MemoryReporter
from engine.live.trainer.shares import RankShare
from engine.process.progress import LoopProgress, report_progress
from engine.training.checkpoint.folder import CheckpointUnverified
from engine.training.port import Write

if TYPE_CHECKING:  # it imports torch
    from engine.training.trainer import Trainer

Answer = TypeVar("Answer")


MakeTrainer = Callable[..., "Trainer"]
"""Called with `device` and `world`, e.g. `partial(build_trainer, folder, settings)`."""


class TrainerRankActor:
    def __init__(self) -> None:
        self._device = claim_device()
        import engine.training.ranks.world  # noqa: F401 - imports torch before any rank waits for this one

        self._trainer: Trainer | None = None
        self._progress: LoopProgress | None = None
        self._act: Write | None = None
        self._folders = HostFolders(None)
        self._prepared: list[Any] = []
        self._share: RankShare | None = None
        self._kills = MemoryReporter()
        self._checkpoints: Path | None = None

    def started(self) -> MemoryReport | None:
        """Answers once this process is up; returns kernel kills on its host, as `run` does."""
        return self._kills.news()

    def fetch(self, fetch: Callable[[], None]) -> None:
        fetch()

    def build(
        self,
        make: MakeTrainer,
        *,
        address: str,
        rank: int,
        num_ranks: int,
        timeout_s: float,
        checkpoints: Path | None,
    ) -> None:
        """`checkpoints`: the parent of all checkpoint folders; files written elsewhere are not uploaded."""
        from engine.training.ranks.world import World

        self._checkpoints = None if checkpoints is None else self._folders.here(checkpoints)
        world = World.join(address, rank=rank, num_ranks=num_ranks, timeout_s=timeout_s)
        self._progress = world.progress()
        try:
            with self._report_signs():
                self._trainer = make(device=self._device, world=world)
        except Exception:
            world.abandon(self._device)
            raise
        self._share = RankShare(self._trainer)

    def look_for(self, mark: Path, root_of_first: Path | None) -> bool:
        """Whether this host sees rank 0's file `mark`."""
        self._folders = HostFolders(root_of_first)
        return self._folders.here(mark).exists()

    def bring(self, folder: Path, uri: str, manifest: bytes) -> str:
        """Fetches the parts that this rank needs; returns what the store's copy lacks, else an empty text."""
        try:
            with self._report_signs():
                bring(self._built, self._folders.here(folder), uri, manifest)
        except CheckpointUnverified as error:
            return str(error)
        return ""

    def run(self, call: str, *raw: object) -> MemoryReport | None:
        arguments = [self._folders.here(each) if isinstance(each, Path) else each for each in raw]
        with self._report_signs():
            answer = self._run_or_hang_up(lambda: getattr(self._built, call)(*arguments))
        if call == "prepare_save":
            self._act, self._prepared = answer, arguments
        return self._kills.news()

    def load(self, folder: Path) -> MemoryReport | None:
        """As `run`. Every rank raises the same error for a damaged checkpoint: the ranks agree on it."""
        here = self._folders.here(folder)

        def work() -> str:
            try:
                with self._report_signs(), no_damaged_copy(here):
                    self._built.load(here)
            except CheckpointUnverified as error:
                return str(error)
            return ""

        if damage := self._run_or_hang_up(work):
            raise CheckpointUnverified(damage)
        return self._kills.news()

    def share(self, call: str, *arguments: object) -> Any:
        return self._run_or_hang_up(lambda: getattr(self._share, call)(*arguments))

    def _run_or_hang_up(self, work: Callable[[], Answer]) -> Answer:
        try:
            return work()
        except Exception:
            from engine.training.ranks.world import hang_up

            hang_up()  # else the other ranks wait for this rank's data until `timeout_s`
            raise

    def write(self) -> None:
        """Writes the checkpoint that was prepared last, in parallel with other calls."""
        assert self._act is not None, "nothing was prepared"
        act, self._act = self._act, None
        (folder,) = self._prepared
        with self._report_signs():
            parts = act()
            if folder.parent == self._checkpoints:
                upload_own(folder, parts)

    @property
    def _built(self) -> Any:
        assert self._trainer is not None, "the rank is not built yet"
        return self._trainer

    def _report_signs(self) -> AbstractContextManager[None]:
        """Reports this thread's progress to rank 0, which waits for this rank."""
        assert self._progress is not None, "the rank is not built yet"
        return self._progress.attached()


def fetched_on(ranks: Sequence[Any], fetch: Callable[[], None] | None) -> list[Any]:
    """The calls of each rank's fetch, all ended. Runs before the ranks join: a slow network must not use up the timeout
    of a collective call."""
    fetching = waiting = [] if fetch is None else [rank.fetch.remote(fetch) for rank in ranks]
    while waiting:
        _, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=1.0)
        report_progress()
    return fetching
