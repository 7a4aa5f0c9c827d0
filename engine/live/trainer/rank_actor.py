"""One rank of a trainer of several devices, other than the first: an actor that makes the calls that it is told to.

Invariants:
- a rank whose call fails closes its connections, so that nobody waits for its data; one that can make no trainer (its
  host may lack the model) meets the others first; a checkpoint that is damaged is refused by all ranks alike, who go on
  as they are;
- a checkpoint is written on a thread of its own, and told by the rank's own folder.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol, TypeVar

import ray

from engine.live.checkpoints.apart import HostFolders, bring, no_damaged_copy, upload_own
from engine.live.process.devices import claim_device
from engine.live.process.kernel_kills import HostKills, KillTeller
from engine.live.trainer.shares import RankShare
from engine.signs import Signs, still_here
from engine.training.checkpoint.folder import CheckpointUnverified
from engine.training.port import SharedTrainer, Write

Answer = TypeVar("Answer")


class ClosableTrainer(SharedTrainer, Protocol):
    def close(self) -> None: ...

    def files_needed(self, stored: Mapping[str, Sequence[str]]) -> list[str]: ...


MakeTrainer = Callable[..., ClosableTrainer]
"""With the keywords `device` and `world`: `partial(FsdpTrainer, folder, settings)`."""


class TrainerRankActor:
    def __init__(self) -> None:
        self._device = claim_device()
        import engine.training.ranks.world  # noqa: F401 - torch, while nobody waits for this rank yet

        self._trainer: ClosableTrainer | None = None
        self._signs: Signs | None = None
        self._act: Write | None = None
        self._folders = HostFolders(None)
        self._prepared: list[Any] = []
        self._share: RankShare | None = None
        self._kills = KillTeller()
        self._checkpoints: Path | None = None

    def started(self) -> HostKills | None:
        """Answers once this process is up; as `run`, with news of what befell its host."""
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
        """`checkpoints`: the folder of their folders; what is written elsewhere is no checkpoint and stays there."""
        from engine.training.ranks.world import World

        self._checkpoints = None if checkpoints is None else self._folders.here(checkpoints)
        world = World.join(address, rank=rank, num_ranks=num_ranks, timeout_s=timeout_s)
        self._signs = world.signs()
        try:
            with self._heard():
                self._trainer = make(device=self._device, world=world)
        except Exception:
            world.abandon(self._device)
            raise
        self._share = RankShare(self._trainer)

    def look_for(self, mark: Path, root_of_first: Path | None) -> bool:
        """Whether this host sees what rank 0's has there."""
        self._folders = HostFolders(root_of_first)
        return self._folders.here(mark).exists()

    def bring(self, folder: Path, uri: str, manifest: bytes) -> str:
        """What the store's copy lacks; nothing: what this rank needs is here."""
        try:
            with self._heard():
                bring(self._built, self._folders.here(folder), uri, manifest)
        except CheckpointUnverified as error:
            return str(error)
        return ""

    def run(self, call: str, *given: object) -> HostKills | None:
        arguments = [self._folders.here(each) if isinstance(each, Path) else each for each in given]
        with self._heard():
            answer = self._or_hang_up(lambda: getattr(self._built, call)(*arguments))
        if call == "prepare_save":
            self._act, self._prepared = answer, arguments
        return self._kills.news()

    def load(self, folder: Path) -> HostKills | None:
        """As `run`. Where it is damaged, every rank has heard so, and says so."""
        here = self._folders.here(folder)

        def work() -> str:
            try:
                with self._heard(), no_damaged_copy(here):
                    self._built.load(here)
            except CheckpointUnverified as error:
                return str(error)
            return ""

        if damage := self._or_hang_up(work):
            raise CheckpointUnverified(damage)
        return self._kills.news()

    def share(self, call: str, *arguments: object) -> Any:
        return self._or_hang_up(lambda: getattr(self._share, call)(*arguments))

    def _or_hang_up(self, work: Callable[[], Answer]) -> Answer:
        try:
            return work()
        except Exception:
            from engine.training.ranks.world import hang_up

            hang_up()  # the others wait for this rank's data, and shall not for `timeout_s`
            raise

    def write(self) -> None:
        """What was prepared last, beside whatever else this rank does."""
        assert self._act is not None, "nothing was prepared"
        act, self._act = self._act, None
        (folder,) = self._prepared
        with self._heard():
            parts = act()
            if folder.parent == self._checkpoints:
                upload_own(folder, parts)

    @property
    def _built(self) -> Any:
        assert self._trainer is not None, "run before it was built"
        return self._trainer

    def _heard(self) -> AbstractContextManager[None]:
        """By rank 0, which waits for this rank."""
        assert self._signs is not None, "run before it was built"
        return self._signs.heard_here()


def fetched_on(ranks: Sequence[Any], fetch: Callable[[], None] | None) -> list[Any]:
    """What each answers that has, or could not. Before they meet: then nobody waits for the slowest host's network
    within the time of a collective call."""
    fetching = waiting = [] if fetch is None else [rank.fetch.remote(fetch) for rank in ranks]
    while waiting:
        _, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=1.0)
        still_here()
    return fetching
