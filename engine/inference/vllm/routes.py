"""The experts that tokens met inside vLLM, as routes (engine/models/routes.py).

Only its V2 runner notes them, so on a CPU there are none. It tells them with a request's tokens: with the first those
of every token that was read, from the one on that was asked for, with each further one those of one token more; of
every layer, also of one that is no mixture. It could not be run: there was no GPU.

    P positions    N layers    W mixtures    k experts of a token

Invariant: what is told begins where a sequence's known routes end, so routes stay of its first tokens.
"""

from pathlib import Path
from typing import Any, Self

import torch

from engine.models.loading import read_config
from engine.models.mixture import MixtureShape
from engine.models.routes import RouteFormat


class NotedRoutes:
    def __init__(self, shape: MixtureShape | None) -> None:
        """None: of a dense model, or nobody notes them."""
        self._format = RouteFormat.of(shape)
        self._layers = () if shape is None else shape.layers

    @classmethod
    def of(cls, folder: Path, *, is_noting: bool) -> Self:
        return cls(read_config(folder).mixture if is_noting else None)

    @property
    def token_bytes(self) -> int:
        return self._format.token_bytes

    def num_known(self, routes: bytes | bytearray) -> int:
        return len(routes) // self.token_bytes if self.token_bytes else 0

    def packed(self, told_PNk: Any) -> bytes:
        """`told_PNk`: numpy's."""
        return self._format.packed(torch.from_numpy(told_PNk)[:, list(self._layers)])
