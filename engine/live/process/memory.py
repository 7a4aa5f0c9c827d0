"""Out of memory, on a device, in a process or on its host: detected, and reported with the arithmetic of the need.

    this process       MemoryError, the errors of torch's two allocators, ENOMEM
    another process    Ray's memory monitor reports it; for a kill by the kernel, its host's counter (`kernel_kills`)

Invariant: a run that is out of memory would fail again, so it is not retried unchanged.
"""

import errno
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ray.exceptions import OutOfMemoryError, RayError

from engine.fit.hosts import trainer_host_need
from engine.fit.need import Need, gigabytes
from engine.fit.plan import DEVICES_PER_HOST
from engine.fit.planning import plan_trainer
from engine.fit.replica import ReplicaPlan, replica_need
from engine.fit.shape import ModelShape
from engine.fit.trainer import trainer_need
from engine.fit.verdict import Misfit, replica_misfit, trainer_misfit
from engine.live.process.fitting import memory_of
from engine.spec.job import JobSpec

# torch raises a plain RuntimeError where a CPU has no memory, and an OutOfMemoryError of its own for a GPU.
_WORDS: Final = re.compile(
    r"can't allocate memory|out of memory|running low on memory|Cannot allocate memory|MemoryError"
)
# A library's error may list every tensor.
LONGEST_LINE: Final = 400
_DEMO: Final = Path(__file__).resolve().parents[2] / "models" / "demo"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether this error, or one of its causes, is out of memory."""
    return any(_is_memory_error(each) for each in _chain(error))


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen = set[int]()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        cause = getattr(error, "cause", None)  # Ray's
        error = cause if isinstance(cause, BaseException) else error.__cause__ or error.__context__


def _is_memory_error(error: BaseException) -> bool:
    if isinstance(error, MemoryError | OutOfMemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    is_of_another_process = hasattr(error, "retryable")  # our own class, for an error of another process
    return (is_of_another_process or isinstance(error, RuntimeError | RayError)) and says_out_of_memory(str(error))


def says_out_of_memory(message: str) -> bool:
    return _WORDS.search(message) is not None


def describe_error(error: BaseException) -> str:
    """The error's first line, and its notes, which name where it was raised."""
    return "; ".join(filter(None, (_first_line(error), *getattr(error, "__notes__", ()))))


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), "")[:LONGEST_LINE].rstrip(".")


def out_of_memory(part: str, error: str, needed: str) -> str:
    """The message for people; its first line is the cause. `needed`: from `arithmetic`."""
    brief = (error.splitlines() or [""])[0].rstrip(".")
    return " ".join(filter(None, (f"{part} ran out of memory{f' ({brief})' if brief else ''}.", needed)))


def arithmetic(spec: JobSpec, *, part: str, device: str = "cpu", devices_per_host: int = DEVICES_PER_HOST) -> str:
    """What the part needs, what the device has, and the smallest change that needs less. Empty if unknown.
    `devices_per_host`: of a trainer."""
    try:
        shape = _shape_of(spec.model.source)
        teacher = _shape_of(spec.algorithm.teacher.source) if spec.algorithm.has_teacher else None
    except (OSError, ValueError):
        return ""
    available = memory_of(device)
    needs = _needs(spec, shape, part, teacher, devices_per_host)
    if not needs:
        return ""
    misfit = _find_remedy(spec, shape, part, needs[0], teacher, devices_per_host)
    where = "the whole host" if device == "cpu" else "the device"
    need_line = f"It needs up to {gigabytes(sum(need.counted for need in needs))}; {where} has {gigabytes(available)}. "
    advice = misfit.advice.replace("It fits if you", "It needs less if you") if misfit else ""
    return "\n".join([need_line + advice, *(line for need in needs for line in need.lines)])


def _shape_of(source: str) -> ModelShape:
    folder = _DEMO if source == "demo" else Path(source)
    return ModelShape.of_config(json.loads((folder / "config.json").read_text()))


def _needs(
    spec: JobSpec, shape: ModelShape, part: str, teacher: ModelShape | None, devices_per_host: int
) -> list[Need]:
    if part.startswith("rollout"):
        return [replica_need(shape, ReplicaPlan.of_spec(spec, shape))]
    if part != "trainer" or spec.only_evaluates:
        return []
    plan = plan_trainer(spec, shape, teacher=teacher, devices_per_host=devices_per_host)
    return [trainer_need(shape, plan), trainer_host_need(shape, plan)]


def _find_remedy(
    spec: JobSpec, shape: ModelShape, part: str, need: Need, teacher: ModelShape | None, devices_per_host: int
) -> Misfit | None:
    """The verdict for a device that is one byte too small."""
    if part.startswith("rollout"):
        return replica_misfit(spec, shape, need.num_bytes - 1)
    return trainer_misfit(spec, shape, need.num_bytes - 1, teacher=teacher, devices_per_host=devices_per_host)
