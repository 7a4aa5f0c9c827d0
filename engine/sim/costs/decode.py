"""A decode step of one replica: a token for each sequence that runs.

    step = max( (copies · weights + context · kv) / (bytes/s · TP · η_m),
                2 · params · batch / (flops · TP · η_c) )
           + launches · (overhead + 2 · layers · all-reduce, where TP > 1) + versions

slots.py gives the number of copies of the weights that a step reads, and the extra time of several versions.
While the same sequences run, the context grows by one token a sequence and step, so that the time of many steps has a
closed form, and so has its inverse.
"""

from dataclasses import dataclass
from math import sqrt
from typing import Final, Self

from engine.sim.costs.constants import AS_THEY_STAND, Book, Constant
from engine.sim.costs.devices import Device
from engine.sim.costs.models import Model

READ_SHARE: Final = Constant(
    name="read_share",
    value=0.8,
    unit="of the memory's bytes/s",
    origin="given",
    source="what streaming reads get of a memory's bandwidth",
)
GEMM_SHARE: Final = Constant(
    name="gemm_share",
    value=0.55,
    unit="of the flops",
    origin="assumed",
    source="at the batch where a step begins to be bound by arithmetic: 203 at this value; usable are 128 to 256",
    sweep=(0.63, 1.27),
)
STEP_OVERHEAD: Final = Constant(
    name="step_overhead",
    value=3.18e-3,
    unit="s",
    origin="fitted",
    source="16K tokens alone take 148 s on the fastest of the three models, 7B on one H800",
)
ALL_REDUCE: Final = Constant(
    name="all_reduce",
    value=7.2e-6,
    unit="s, two a layer",
    origin="fitted",
    source="16K tokens alone take 184 s on the slowest of the three models, 72B on eight H800",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The effect of the running versions on a step."""

    weights: float = 1
    """Copies that are read."""
    launches: float = 1
    overlapped_s: float = 0.0


ONE_VERSION: Final = Load()


@dataclass(frozen=True, slots=True)
class DecodeCost:
    """Of one replica, in seconds."""

    weights_s: float
    """To read one version."""
    kv_s: float
    """To read a token's keys and values."""
    row_s: float
    """The arithmetic of a sequence."""
    overhead_s: float
    """Of one version."""

    @classmethod
    def of(cls, device: Device, model: Model, *, tp: int, book: Book = AS_THEY_STAND) -> Self:
        bytes_per_s = device.bytes_per_s * tp * book(READ_SHARE)
        flops = device.flops * tp * book(GEMM_SHARE)
        reduces = 2 * model.num_layers * book(ALL_REDUCE) if tp > 1 else 0.0
        return cls(
            weights_s=model.weight_bytes / bytes_per_s,
            kv_s=model.kv_bytes / bytes_per_s,
            row_s=2 * model.num_weights / flops,
            overhead_s=book(STEP_OVERHEAD) + reduces,
        )

    @property
    def free_batch(self) -> int:
        """The roofline bound B: as many rows as one step reads weights for anyway."""
        return int(self.weights_s / self.row_s)

    def step_s(self, batch: int, context: float, *, load: Load = ONE_VERSION) -> float:
        return self.steps_s(1, batch, context, load=load)

    def steps_s(self, steps: int, batch: int, context: float, *, load: Load = ONE_VERSION) -> float:
        """Of so many steps, whose first one reads this much context."""
        if steps <= 0 or batch == 0:
            return 0.0
        read_s = load.weights * self.weights_s + context * self.kv_s
        bound = self._compute_steps(steps, batch, read_s)
        memory = steps - bound
        first = read_s + bound * batch * self.kv_s
        in_memory_s = memory * first + batch * self.kv_s * memory * (memory - 1) / 2
        return bound * batch * self.row_s + in_memory_s + steps * self._overhead_s(load)

    def steps_within(self, seconds: float, batch: int, context: float, *, load: Load = ONE_VERSION) -> int:
        """Whole steps that fit into this time."""
        if batch == 0 or seconds <= 0:
            return 0
        overhead_s, growth_s = self._overhead_s(load), batch * self.kv_s
        read_s = load.weights * self.weights_s + context * self.kv_s
        bound = self._compute_steps(2**62, batch, read_s)
        in_bound_s = batch * self.row_s + overhead_s
        if bound * in_bound_s >= seconds:
            return self._exact(int(seconds / in_bound_s), seconds, batch, context, load)
        left_s, linear = seconds - bound * in_bound_s, read_s + bound * growth_s + overhead_s - growth_s / 2
        more = 2 * left_s / (linear + sqrt(linear * linear + 2 * growth_s * left_s))
        return self._exact(bound + int(more), seconds, batch, context, load)

    def _overhead_s(self, load: Load) -> float:
        return load.launches * self.overhead_s + load.overlapped_s

    def _compute_steps(self, steps: int, batch: int, read_s: float) -> int:
        """The first steps that are bound by arithmetic, until the context has grown."""
        over_s = batch * self.row_s - read_s
        if over_s <= 0:
            return 0
        return min(steps, int(over_s / (batch * self.kv_s)) + 1)

    def _exact(self, steps: int, seconds: float, batch: int, context: float, load: Load) -> int:
        """A square root is off by one now and then."""
        while steps > 0 and self.steps_s(steps, batch, context, load=load) > seconds:
            steps -= 1
        while self.steps_s(steps + 1, batch, context, load=load) <= seconds:
            steps += 1
        return steps
