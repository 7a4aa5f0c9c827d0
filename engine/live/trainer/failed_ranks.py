"""Ends ranks whose call failed, so that no other rank waits for them."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import ray
from ray.exceptions import RayError

from engine.training.checkpoint.folder import CheckpointUnverified

LOOK_UP_EVERY_S: Final = 1.0


def end_failed(actors: Mapping[Any, Any], *, meanwhile: Callable[[], None]) -> None:
    """`actors`: by their calls. A failed rank's traceback keeps its connections open, and the others wait on those."""
    left = list(actors)
    while left:
        done, left = ray.wait(left, num_returns=1, timeout=LOOK_UP_EVERY_S)
        meanwhile()
        for call in done:
            try:
                ray.get(call)
            except CheckpointUnverified:  # every rank refuses it and continues
                continue
            except RayError:
                ray.kill(actors[call])
