"""Copies of the sharded weights: which ranks shard one copy together (`trainer.shard_within`).

    all     one copy, sharded among all ranks
    node    one copy on each host, sharded among the ranks of the host

               copy 0 (host A)    copy 1 (host B)
    shard 0        rank 0             rank 2        ← across hosts: gradients are summed, once an update
    shard 1        rank 1             rank 3
                     ↑ within a host: weights are gathered, gradients are summed

Invariant: every copy has the same bits on its ranks together. Sums of gradients, their norms and the random streams are
the same on the ranks of a shard, and each of these ranks makes the same update.
"""

from dataclasses import dataclass
from typing import Literal, Self

import torch
from torch.distributed import group
from torch.distributed.device_mesh import DeviceMesh

from engine.training.ranks.world import World


@dataclass(frozen=True, slots=True, kw_only=True)
class Copies:
    ranks: tuple[tuple[int, ...], ...]
    """Of each copy, in the order of their shards."""
    own_copy: int
    own_shard: int

    @classmethod
    def within(cls, shard_within: Literal["all", "node"], world: World) -> Self:
        """Raises `ValueError`, the same on every rank, if hosts have different numbers of ranks. Collective."""
        hosts = [list(range(world.count))] if shard_within == "all" else world.ranks_by_host()
        if len(set(map(len, hosts))) > 1:
            numbers = ", ".join(map(str, map(len, hosts)))
            raise ValueError(
                f"trainer.shard_within node needs as many of the trainer's devices on every host; its {world.count} "
                f"are {numbers} a host. Set resources.trainer_devices to a number that full hosts have together, or "
                "trainer.shard_within to all"
            )
        return cls.of(hosts, own_rank=world.index)

    @classmethod
    def of(cls, ranks: list[list[int]], *, own_rank: int) -> Self:
        own_copy = next(copy for copy, each in enumerate(ranks) if own_rank in each)
        return cls(ranks=tuple(map(tuple, ranks)), own_copy=own_copy, own_shard=ranks[own_copy].index(own_rank))

    @property
    def num_copies(self) -> int:
        return len(self.ranks)

    @property
    def num_shards(self) -> int:
        return len(self.ranks[0])

    def make_mesh(self, world: World, device: torch.device) -> DeviceMesh:
        """Collective. `world`: must have been entered."""
        if self.num_copies == 1:
            assert group.WORLD is not None
            return DeviceMesh.from_group(group.WORLD, device.type)
        across = world.make_group(zip(*self.ranks, strict=True))
        within = world.make_group(self.ranks)
        return DeviceMesh.from_group(
            [across, within], device.type, mesh=torch.tensor(self.ranks), mesh_dim_names=("replicate", "shard")
        )
