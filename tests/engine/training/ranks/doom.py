"""Fault injection into a step, for every way to shard weights.

forward    before a layer computes
gather     before a layer's rows are sent to the other ranks
backward   when the gradient reaches a layer
update     after one part's weights and moments have moved, perhaps before any other's
"""

import os
import signal
from collections.abc import Callable
from typing import Any, Final

from torch import Tensor

from engine.training.fsdp.sharding import FsdpPart, FsdpSharding

PHASES: Final = ("forward", "gather", "backward", "update")

Strike = Callable[[], None]


def kill_this_process() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def strike_at(phase: str, trainer: Any, strike: Strike) -> None:
    """Calls `strike` when this trainer next reaches the phase."""
    layer = trainer._model.layers[-1]
    match phase:
        case "forward":
            layer.register_forward_pre_hook(lambda *_: strike())
        case "gather":
            _strike_at_gather(trainer, strike)
        case "backward":
            layer.register_forward_hook(lambda _, __, output: _strike_at_gradient(output, strike))
        case "update":
            _strike_at_update(trainer, strike)
        case _:
            raise ValueError(f"no phase is {phase!r}")


def _strike_at_gather(trainer: Any, strike: Strike) -> None:
    owner, name = _gatherer(trainer)
    gather = getattr(owner, name)

    def gathered(*arguments: Any, **named: Any) -> Any:
        strike()
        return gather(*arguments, **named)

    setattr(owner, name, gathered)


def _gatherer(trainer: Any) -> tuple[Any, str]:
    """The object and attribute under which the gather function is looked up."""
    if isinstance(trainer._sharding, FsdpSharding):
        import torch.distributed

        return torch.distributed, "all_gather_single"
    from deepspeed.comm import comm

    return comm.cdb, "all_gather_function"


def _strike_at_gradient(output: Any, strike: Strike) -> None:
    hidden: Tensor = output[0] if isinstance(output, tuple) else output
    if hidden.requires_grad:
        hidden.register_hook(lambda _: strike())  # type: ignore[no-untyped-call]


def _strike_at_update(trainer: Any, strike: Strike) -> None:
    """Patches the optimizer's class, as the first part steps first."""
    part = trainer._sharding.parts[0]
    optimizer: Any = part._optimizer if isinstance(part, FsdpPart) else part._engine.optimizer.optimizer
    step = type(optimizer).step

    def stepped(*arguments: Any, **named: Any) -> Any:
        result = step(*arguments, **named)
        strike()
        return result

    type(optimizer).step = stepped
