"""A replica that a relay serves: the seconds for which an install blocks its decoding, against one copy of the bytes.

It installs as a torch engine's replica: maps the version, copies every tensor into the model, unmaps on another thread.
"""

import time
from pathlib import Path

import torch

from engine.live.weights.offered_bytes import map_version, unmap_in_background
from engine.pipeline.messages.message import Message
from engine.pipeline.messages.to_rollout import WeightsServed
from engine.weights.chunks import copy_bytes
from engine.weights.installing import Installer
from engine.weights.port import WeightVersion
from engine.weights.snapshot import map_weights


class InstallerActor:
    """Installs the weights that it is served."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self._served: list[WeightsServed] = []

    def deliver(self, message: Message) -> None:
        if isinstance(message, WeightsServed):
            self._served.append(message)

    def is_served(self) -> bool:
        return bool(self._served)

    def measure(self, repeats: int) -> list[tuple[float, float]]:
        """(an install, a copy) in turns."""
        [*_, served] = self._served
        num_bytes = served.manifest.num_bytes
        memory = memoryview(torch.ones(num_bytes, dtype=torch.uint8).numpy().data)
        model = map_weights(WeightVersion(manifest=served.manifest, buffer=memory))
        there = map_version(served.manifest, served.payload).buffer
        installer = Installer(Path(), device="cpu", is_of_base=True)
        taken = []
        for _ in range(1 + repeats):
            started = time.perf_counter()
            version = map_version(served.manifest, served.payload)
            installer.install(version, model)
            unmap_in_background(version)
            del version
            installed = time.perf_counter()
            copy_bytes(there, memory)
            taken.append((installed - started, time.perf_counter() - installed))
        return taken[1:]
