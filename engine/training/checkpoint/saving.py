"""Saving: copies a rank's state, during which training waits, and returns the function that writes the copy.

Invariants:
- the written state is the prepared one, however training has continued;
- host memory for the copy is allocated once and kept; a second copy is not made before the first is written.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Lock

import torch
from torch import Tensor

from engine.spec.checkpoint_manifest import CheckpointPart
from engine.training.checkpoint.content import TrainerProgress
from engine.training.checkpoint.rank_share import PublishedModel, RankShare
from engine.training.checkpoint.shares import PartShares
from engine.training.checkpoint.staging import Staging
from engine.training.port import Write
from engine.training.ranks.world import World


class Saver:
    """Saves a trainer's checkpoints. The constructor is collective: the ranks of a host count each other."""

    def __init__(self, published: PublishedModel, world: World, device: torch.device) -> None:
        self._published, self._world = published, world
        self._staging = Staging(device)
        self._num_sharing = world.count_on_this_host()
        self._in_use = Lock()
        self._num_prepared = 0

    def get_ready(self, parts: Sequence[PartShares]) -> None:
        """Allocates the memory for the first `prepare` of as much, in parallel with the step before it."""
        self._staging.get_ready(_name_values(parts), num_sharing=self._num_sharing)

    def wait_until_ready(self) -> None:
        self._staging.wait_until_ready()

    def prepare(
        self, folder: Path, parts: Sequence[PartShares], streams: Mapping[str, Tensor], progress: TrainerProgress
    ) -> Write:
        """Copies the state, once a write in progress has ended. The returned write is collective."""
        with self._in_use:
            self._num_prepared += 1
            share = RankShare(
                folder=folder,
                published=self._published,
                world=self._world,
                parts=self._copy(parts, folder=folder.parent),
                streams=dict(streams),
                progress=progress,
            )
        return partial(self._write, share, number=self._num_prepared)

    def _write(self, share: RankShare, *, number: int) -> Mapping[str, CheckpointPart]:
        with self._in_use:
            assert number == self._num_prepared, "another checkpoint was prepared before this one was written"
            return share.write()

    def _copy(self, parts: Sequence[PartShares], *, folder: Path) -> list[PartShares]:
        copies = self._staging.hold(_name_values(parts), folder=folder, num_sharing=self._num_sharing)
        held = iter(copies.values())
        return [
            replace(
                each,
                kinds={
                    kind: {name: replace(share, values=next(held)) for name, share in shares.items()}
                    for kind, shares in each.kinds.items()
                },
            )
            for each in parts
        ]


def _name_values(parts: Sequence[PartShares]) -> dict[str, Tensor]:
    return {
        f"{each.part.prefix}{kind}/{name}": share.values
        for each in parts
        for kind, shares in each.kinds.items()
        for name, share in shares.items()
    }
