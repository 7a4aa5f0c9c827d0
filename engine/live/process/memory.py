"""Memory that ran out, of a device, a process or its host: recognised, and told with the arithmetic of what is needed.

    this process       MemoryError, torch's errors of both of its allocators, ENOMEM
    another process    Ray's memory monitor says so; of a kill by the kernel the host's own counter tells

Invariant: what ran out of memory once will do so again, so nobody tries it again unchanged.
"""

import errno
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import ray
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

_VMSTAT: Final = Path("/proc/vmstat")
# torch raises a plain RuntimeError where a CPU has no memory, and an OutOfMemoryError of its own for a GPU.
_WORDS: Final = re.compile(
    r"can't allocate memory|out of memory|running low on memory|Cannot allocate memory|MemoryError"
)
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
    if isinstance(error, MemoryError | OutOfMemoryError) or getattr(error, "out_of_memory", False):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, RuntimeError | RayError) and says_out_of_memory(str(error))


def says_out_of_memory(message: str) -> bool:
    return _WORDS.search(message) is not None


def out_of_memory(part: str, seen: str, needed: str) -> str:
    """For a person; the first line is the cause. `needed`: the `arithmetic`."""
    brief = (seen.splitlines() or [""])[0][:300].rstrip(".")
    return " ".join(filter(None, (f"{part} ran out of memory{f' ({brief})' if brief else ''}.", needed)))


class KernelKills:
    """The processes that the kernel of this host has killed for want of memory, since it was last asked."""

    def __init__(self, vmstat: Path = _VMSTAT) -> None:
        self._vmstat = vmstat
        self._num_seen = self._count()

    def explain(self, death: RayError) -> bool:
        """Of an actor that was on this host: one of them may have been it."""
        before, self._num_seen = self._num_seen, self._count()
        return self._num_seen > before and _own_address() in str(death)

    def _count(self) -> int:
        try:
            lines = self._vmstat.read_text().splitlines()
        except OSError:
            return 0
        return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)


def _own_address() -> str:
    address: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    return address


def arithmetic(spec: JobSpec, *, part: str, device: str = "cpu") -> str:
    """What the part needs, what there is, and the smallest change that needs less. Empty where nothing is known."""
    model = _DEMO if spec.model.source == "demo" else Path(spec.model.source)
    try:
        shape = ModelShape.of_config(json.loads((model / "config.json").read_text()))
    except (OSError, ValueError):
        return ""
    there = memory_of(device)
    needs = _needs(spec, shape, part)
    if not needs:
        return ""
    misfit = _needs_less(spec, shape, part, needs[0])
    where = "the whole host" if device == "cpu" else "the device"
    told = f"It needs up to {gigabytes(sum(need.counted for need in needs))}, and {where} has {gigabytes(there)}. "
    advice = misfit.advice.replace("It fits if you", "It needs less if you") if misfit else ""
    return "\n".join([told + advice, *(line for need in needs for line in need.lines)])


def _needs(spec: JobSpec, shape: ModelShape, part: str) -> list[Need]:
    if part.startswith("rollout"):
        return [replica_need(shape, ReplicaPlan.of_spec(spec, shape))]
    if part != "trainer" or spec.only_evaluates:
        return []
    plan = TrainerPlan.of_spec(spec, shape)
    return [trainer_need(shape, plan), trainer_host_need(shape, plan)]


def _needs_less(spec: JobSpec, shape: ModelShape, part: str, need: Need) -> Misfit | None:
    """The verdict on a device that is just too small for what is asked."""
    return (replica_misfit if part.startswith("rollout") else trainer_misfit)(spec, shape, need.num_bytes - 1)
