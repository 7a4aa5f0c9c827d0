"""The experts that vLLM chose for each token, as routes (engine/models/routes.py).

Only vLLM's V2 runner records them, so on a CPU there are none. It returns them with a request's tokens: with the first
token those of all tokens read from the requested position on, with each further token those of one more; for every
layer, also those that are no mixture. Not run yet: there was no GPU.

    P positions    N layers    W mixtures    k experts of a token

Invariant: new routes begin where a sequence's known routes end, so its routes always cover its first tokens. They are
packed when the sequence leaves, is reported or is requested again.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Self

import numpy as np
import torch

from engine.inference.vllm.live_sequence import LiveSequence
from engine.models.loading import read_config
from engine.models.mixture import MixtureShape
from engine.models.routes import RouteFormat


class NotedRoutes:
    def __init__(self, shape: MixtureShape | None) -> None:
        """`shape`: None for a dense model, or if the runner records no routes."""
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

    def pack_new(self, sequences: Sequence[LiveSequence]) -> None:
        """Packs the new routes of these sequences, all at once."""
        routed = [live for live in sequences if live.new_routes]
        if not routed or not self.token_bytes:
            return
        routes_PNk = np.concatenate([piece for live in routed for piece in live.new_routes])
        packed = memoryview(self._format.packed(torch.from_numpy(routes_PNk)[:, list(self._layers)]))
        for live in routed:
            num_bytes = sum(map(len, live.new_routes)) * self.token_bytes
            live.routes += packed[:num_bytes]
            packed = packed[num_bytes:]
            live.new_routes.clear()
