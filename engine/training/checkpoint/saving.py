"""Saving: a copy of what a rank has, which is all that training stands still for, and the act that writes it.

Invariants:
- what is written is what was prepared, whatever training made of it since;
- host memory for the copy is taken once and kept; a second one is not prepared before the first is written.
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
    """A trainer's. Collective, as the ranks of a host count each other."""

    def __init__(self, published: PublishedModel, world: World, device: torch.device) -> None:
        self._published, self._world = published, world
        self._staging = Staging(device)
        self._num_sharing = world.count_on_this_host()
        self._in_use = Lock()
        self._num_prepared = 0

    def get_ready(self, parts: Sequence[PartShares]) -> None:
        """For `prepare` of as much: the memory for the first copy, beside the step that it will be of."""
        self._staging.get_ready(_values_of(parts), num_sharing=self._num_sharing)

    def wait_until_ready(self) -> None:
        self._staging.wait_until_ready()

    def prepare(
        self, folder: Path, parts: Sequence[PartShares], streams: Mapping[str, Tensor], progress: TrainerProgress
    ) -> Write:
        """Waits until what was prepared before is written, if that has begun. The act is collective."""
        with self._in_use:
            self._num_prepared += 1
            share = RankShare(
                folder=folder,
                published=self._published,
                world=self._world,
                parts=self._copies(parts, beside=folder.parent),
                streams=dict(streams),
                progress=progress,
            )
        return partial(self._write, share, number=self._num_prepared)

    def _write(self, share: RankShare, *, number: int) -> Mapping[str, CheckpointPart]:
        with self._in_use:
            assert number == self._num_prepared, "another checkpoint was prepared before this one was written"
            return share.write()

    def _copies(self, parts: Sequence[PartShares], *, beside: Path) -> list[PartShares]:
        copies = self._staging.hold(_values_of(parts), beside=beside, num_sharing=self._num_sharing)
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


def _values_of(parts: Sequence[PartShares]) -> dict[str, Tensor]:
    return {
        f"{each.part.prefix}{kind}/{name}": share.values
        for each in parts
        for kind, shares in each.kinds.items()
        for name, share in shares.items()
    }
