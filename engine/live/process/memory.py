"""Memory that ran out, of a device, a process or its host: recognised, and told with the arithmetic of what is needed.

    this process       MemoryError, torch's errors of both of its allocators, ENOMEM
    another process    Ray's memory monitor says so; of a kill by the kernel its host's counter tells (`kernel_kills`)

Invariant: what ran out of memory once will do so again, so nobody tries it again unchanged.
"""

import errno
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ray.exceptions import OutOfMemoryError, RayError

from engine.live.process.fitting import memory_of
from engine.spec.fit.hosts import trainer_host_need
from engine.spec.fit.need import Need, gigabytes
from engine.spec.fit.plan import TrainerPlan
from engine.spec.fit.replica import ReplicaPlan, replica_need
from engine.spec.fit.shape import ModelShape
from engine.spec.fit.trainer import trainer_need
from engine.spec.fit.verdict import Misfit, replica_misfit, trainer_misfit
from engine.spec.job import JobSpec

# torch raises a plain RuntimeError where a CPU has no memory, and an OutOfMemoryError of its own for a GPU.
_WORDS: Final = re.compile(
    r"can't allocate memory|out of memory|running low on memory|Cannot allocate memory|MemoryError"
)
# Of an error as a library wrote it, which may list every tensor.
LONGEST_LINE: Final = 400
_DEMO: Final = Path(__file__).resolve().parents[2] / "models" / "demo"


def is_out_of_memory(error: BaseException) -> bool:
    """It, or what it came of."""
    return any(_is_one(each) for each in _chain(error))


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen = set[int]()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        cause = getattr(error, "cause", None)  # Ray's
        error = cause if isinstance(cause, BaseException) else error.__cause__ or error.__context__


def _is_one(error: BaseException) -> bool:
    if isinstance(error, MemoryError | OutOfMemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    tells_of_others = hasattr(error, "retryable")  # ours, of what another process met
    return (tells_of_others or isinstance(error, RuntimeError | RayError)) and says_out_of_memory(str(error))


def says_out_of_memory(message: str) -> bool:
    return _WORDS.search(message) is not None


def told(error: BaseException) -> str:
    """Its first line, and where it was raised, as its notes say."""
    return "; ".join(filter(None, (_first_line(error), *getattr(error, "__notes__", ()))))


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), "")[:LONGEST_LINE].rstrip(".")


def out_of_memory(part: str, seen: str, needed: str) -> str:
    """For a person; the first line is the cause. `needed`: the `arithmetic`."""
    brief = (seen.splitlines() or [""])[0].rstrip(".")
    return " ".join(filter(None, (f"{part} ran out of memory{f' ({brief})' if brief else ''}.", needed)))


def arithmetic(spec: JobSpec, *, part: str, device: str = "cpu") -> str:
    """What the part needs, what there is, and the smallest change that needs less. Empty where nothing is known."""
    try:
        shape = _shape_of(spec.model.source)
        teacher = _shape_of(spec.algorithm.teacher.source) if spec.algorithm.has_teacher else None
    except (OSError, ValueError):
        return ""
    there = memory_of(device)
    needs = _needs(spec, shape, part, teacher)
    if not needs:
        return ""
    misfit = _needs_less(spec, shape, part, needs[0], teacher)
    where = "the whole host" if device == "cpu" else "the device"
    told = f"It needs up to {gigabytes(sum(need.counted for need in needs))}, and {where} has {gigabytes(there)}. "
    advice = misfit.advice.replace("It fits if you", "It needs less if you") if misfit else ""
    return "\n".join([told + advice, *(line for need in needs for line in need.lines)])


def _shape_of(source: str) -> ModelShape:
    folder = _DEMO if source == "demo" else Path(source)
    return ModelShape.of_config(json.loads((folder / "config.json").read_text()))


def _needs(spec: JobSpec, shape: ModelShape, part: str, teacher: ModelShape | None) -> list[Need]:
    if part.startswith("rollout"):
        return [replica_need(shape, ReplicaPlan.of_spec(spec, shape))]
    if part != "trainer" or spec.only_evaluates:
        return []
    plan = TrainerPlan.of_spec(spec, shape, teacher=teacher)
    return [trainer_need(shape, plan), trainer_host_need(shape, plan)]


def _needs_less(spec: JobSpec, shape: ModelShape, part: str, need: Need, teacher: ModelShape | None) -> Misfit | None:
    """The verdict on a device that is just too small for what is asked."""
    if part.startswith("rollout"):
        return replica_misfit(spec, shape, need.num_bytes - 1)
    return trainer_misfit(spec, shape, need.num_bytes - 1, teacher=teacher)
