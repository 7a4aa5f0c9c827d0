"""Ranks whose call failed: ended at once, so that no other rank waits for them."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import ray
from ray.exceptions import RayError

from engine.training.checkpoint.folder import CheckpointUnverified

LOOK_UP_EVERY_S: Final = 1.0


def end_failed(actors: Mapping[Any, Any], *, meanwhile: Callable[[], None]) -> None:
    """By their calls. Its own traceback keeps a failed rank's connections open, on which the others would wait."""
    left = list(actors)
    while left:
        done, left = ray.wait(left, num_returns=1, timeout=LOOK_UP_EVERY_S)
        meanwhile()
        for call in done:
            try:
                ray.get(call)
            except CheckpointUnverified:  # all refuse it alike, and go on
                continue
            except RayError:
                ray.kill(actors[call])
