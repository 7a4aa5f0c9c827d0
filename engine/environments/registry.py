"""Environments by name: the one place that knows them all.

Invariant: an unknown name or parameter is a `ValueError` that lists what would be accepted.
"""

from collections.abc import Callable, Mapping
from typing import Final

from engine.environments.port import Environment
from engine.environments.running_sums import RunningSums

Params = Mapping[str, str | int | float | bool]

_MAKERS: Final[Mapping[str, Callable[[int, Params], Environment]]] = {
    RunningSums.name: RunningSums.from_params,
}
ENVIRONMENT_NAMES: Final[tuple[str, ...]] = tuple(sorted(_MAKERS))


def make_environment(name: str, *, seed: int, params: Params) -> Environment:
    if name not in _MAKERS:
        raise ValueError(f"environment: unknown name {name!r}; choose from {', '.join(ENVIRONMENT_NAMES)}")
    return _MAKERS[name](seed, params)
